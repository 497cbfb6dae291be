package daemon

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/daemon/envoyenv"
	"github.com/stintdev/stint/internal/kit/strict"
)

const (
	envPrefix  = "STINT_"
	envConfig  = "STINT_CONFIG" // the path of the file, which the caller of Load reads
	flagPrefix = "--"
)

// Setting is enabled, or a setting of [server], [identity], [envoy] or [region], and where its value comes from:
// default, FILE:LINE, a variable or a flag. Lists are joined by commas, secrets masked.
type Setting = admin.Setting

// Settings returns every setting, in the order of the documentation.
func (c *Config) Settings() []Setting {
	var out []Setting
	for _, s := range c.settings() {
		out = append(out, Setting{Name: s.name, Env: s.env(), Value: s.text(), Origin: cmp.Or(c.origins[s.name], "default"), Doc: s.doc})
	}
	return out
}

// Defaults returns every setting with its default.
func Defaults() []Setting { return defaults().Settings() }

// setting is Enabled, or a field of [Server], [Identity], [Envoy], [Region] or of their structs.
type setting struct {
	name, doc string
	value     reflect.Value
}

// settings returns all settings, with their names in the file.
func (c *Config) settings() []setting {
	enabled, _ := reflect.TypeFor[Config]().FieldByName("Enabled")
	all := []setting{{"enabled", enabled.Tag.Get("doc"), reflect.ValueOf(&c.Enabled).Elem()}}
	all = fields(all, "server", reflect.ValueOf(&c.Server).Elem())
	all = fields(all, "identity", reflect.ValueOf(&c.Identity).Elem())
	all = fields(all, "envoy", reflect.ValueOf(&c.Envoy).Elem())
	return fields(all, "region", reflect.ValueOf(&c.Region).Elem())
}

func fields(all []setting, path string, v reflect.Value) []setting {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			all = fields(all, path, v.Field(i))
			continue
		}
		if f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct {
			continue // a list of tables, which only a file can have
		}
		name := strict.Member(path, f.Tag.Get("json"))
		if f.Type.Kind() == reflect.Struct {
			all = fields(all, name, v.Field(i))
			continue
		}
		all = append(all, setting{name, f.Tag.Get("doc"), v.Field(i)})
	}
	return all
}

func (s *setting) env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(s.name, ".", "_"))
}

// text returns the value in the format of a variable, with secrets masked.
func (s *setting) text() string {
	switch {
	case s.value.Kind() == reflect.Slice:
		list := make([]string, s.value.Len())
		for i := range list {
			list[i] = fmt.Sprint(s.value.Index(i).Interface())
		}
		return strings.Join(list, ",")
	case s.value.Kind() == reflect.String && s.value.Len() == 0:
		return ""
	}
	return fmt.Sprint(s.value.Interface())
}

// set parses a value. Errors do not contain it if it may be secret.
func (s *setting) set(text string) error {
	if u, ok := s.value.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch s.value.Kind() {
	case reflect.String:
		s.value.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return errors.New(strict.Quote(text) + ": want true or false")
		}
		s.value.SetBool(text == "true")
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, s.value.Type().Bits())
		if err != nil {
			return errors.New(strict.Quote(text) + ": want an integer")
		}
		s.value.SetInt(n)
	case reflect.Slice:
		list := reflect.MakeSlice(s.value.Type(), 0, 0)
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				list = reflect.Append(list, reflect.ValueOf(item).Convert(list.Type().Elem()))
			}
		}
		s.value.Set(list)
	default:
		panic("daemon: a setting of type " + s.value.Type().String())
	}
	return nil
}

// override sets the given settings, then those of the environment, then those of flags.
func (c *Config) override(given []Flag, environ []string, flags []Flag) strict.Problems {
	all := c.settings()
	byEnv, byName := map[string]*setting{}, map[string]*setting{}
	for i := range all {
		byEnv[all[i].env()], byName[all[i].name] = &all[i], &all[i]
	}
	var problems strict.Problems
	take := func(s *setting, origin, text string) {
		c.origins[s.name] = origin
		if err := s.set(text); err != nil {
			problems = append(problems, strict.Problem{Path: origin, Message: err.Error()})
		}
	}
	unknown := func(origin, what, name string, known map[string]*setting) {
		p := strict.Problem{Path: origin, Message: "unknown " + what}
		if near, ok := strict.Closest(name, slices.Sorted(maps.Keys(known))); ok {
			p.Hint = strict.DidYouMean(near)
		}
		problems = append(problems, p)
	}
	named := func(flags []Flag) {
		for _, f := range flags {
			switch s, ok := byName[f.Setting]; {
			case !ok:
				unknown(f.Name, "setting", f.Setting, byName)
			case !f.unlessSet || c.origins[s.name] == "":
				take(s, f.Name, f.Value)
			}
		}
	}
	named(given)
	for _, variable := range environ {
		name, text, _ := strings.Cut(variable, "=")
		if s, ok := byEnv[name]; ok {
			take(s, name, text)
		} else if strings.HasPrefix(name, envPrefix) && name != envConfig && !ofKubernetes(name, text) {
			unknown(name, "variable", name, byEnv)
		}
	}
	named(flags)
	return problems
}

var serviceLink = regexp.MustCompile(`_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?$`)

// ofKubernetes reports whether Kubernetes sets the variable in every pod, for a service
// whose name starts with stint.
func ofKubernetes(name, text string) bool {
	return serviceLink.MatchString(name) || strings.HasSuffix(name, "_PORT") && strings.Contains(text, "://")
}

// noteOrigins remembers which settings are in the file, and where.
func (c *Config) noteOrigins(path string, doc *strict.Doc) {
	for _, s := range c.settings() {
		line, column := doc.At(s.name)
		// A setting that is not in the file has the place of its table.
		l, col := doc.At(s.name[:max(strings.LastIndexByte(s.name, '.'), 0)])
		if line != l || column != col || s.name == "enabled" && !c.Enabled { // which may be where the file begins
			c.origins[s.name] = path + ":" + strconv.Itoa(line)
		}
	}
}

// EnvoyEnv converts the variables of envoyproxy/ratelimit for [Source].Given, and returns
// notes about those that have no effect. What flags and STINT_ variables set is not
// required of them. The error is of type [rule.Problems].
func EnvoyEnv(environ []string, flags ...Flag) (given []Flag, notes []string, err error) {
	set := map[string]string{}
	for _, f := range flags {
		set[f.Setting] = f.Name
	}
	for _, s := range defaults().settings() {
		if slices.ContainsFunc(environ, func(line string) bool { return strings.HasPrefix(line, s.env()+"=") }) {
			set[s.name] = s.env()
		}
	}
	settings, notes, problems := envoyenv.Read(environ, set)
	for _, s := range settings {
		given = append(given, Flag{Name: s.Variable, Setting: s.Name, Value: s.Value, unlessSet: s.Default})
	}
	return given, notes, problems.Err()
}
