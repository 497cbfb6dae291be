package daemon

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/stintdev/stint/internal/strict"
)

const (
	envPrefix = "STINT_"
	envConfig = "STINT_CONFIG" // the path of the file, which is for the caller of Load
)

// Setting is one setting of [server] or [identity], and where it comes from.
type Setting struct {
	Name   string `json:"name"`   // server.counters
	Env    string `json:"env"`    // STINT_SERVER_COUNTERS
	Value  string `json:"value"`  // lists have commas, and secrets are masked
	Origin string `json:"origin"` // default, FILE:LINE, or the variable
	Doc    string `json:"doc"`
}

// Settings returns every setting, in the order of the documentation.
func (c *Config) Settings() []Setting {
	var out []Setting
	for _, s := range c.settings() {
		origin := c.origins[s.name]
		if origin == "" {
			origin = "default"
		}
		out = append(out, Setting{Name: s.name, Env: s.env(), Value: s.text(), Origin: origin, Doc: s.doc})
	}
	return out
}

// setting is a field of [Server], [Identity] or [JWT].
type setting struct {
	name, doc string
	value     reflect.Value
}

// settings are all there are. Their names are those of the file.
func (c *Config) settings() []setting {
	return fields(fields(nil, "server", reflect.ValueOf(&c.Server).Elem()), "identity", reflect.ValueOf(&c.Identity).Elem())
}

func fields(all []setting, path string, v reflect.Value) []setting {
	for i := range v.NumField() {
		f := v.Type().Field(i)
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

// text returns the value as a variable would have it, if it is not secret.
func (s *setting) text() string {
	switch {
	case s.value.Kind() == reflect.Slice:
		list, _ := s.value.Interface().([]string)
		return strings.Join(list, ",")
	case s.value.Kind() == reflect.String && s.value.Len() == 0:
		return ""
	}
	return fmt.Sprint(s.value.Interface())
}

// set reads the text of a variable. The error does not show it if it may be secret.
func (s *setting) set(text string) error {
	if u, ok := s.value.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch s.value.Kind() {
	case reflect.String:
		s.value.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return errors.New(quote(text) + ": want true or false")
		}
		s.value.SetBool(text == "true")
	case reflect.Int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return errors.New(quote(text) + ": want an integer")
		}
		s.value.SetInt(int64(n))
	case reflect.Slice:
		list := []string{}
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				list = append(list, item)
			}
		}
		s.value.Set(reflect.ValueOf(list))
	default:
		panic("daemon: a setting of type " + s.value.Type().String())
	}
	return nil
}

// override takes the settings that the environment has, and returns what is wrong
// with them.
func (c *Config) override(environ []string) strict.Problems {
	all := c.settings()
	byEnv, names := map[string]*setting{}, []string{}
	for i := range all {
		byEnv[all[i].env()] = &all[i]
		names = append(names, all[i].env())
	}
	var problems strict.Problems
	for _, variable := range environ {
		name, text, _ := strings.Cut(variable, "=")
		s, known := byEnv[name]
		switch {
		case known:
			c.origins[s.name] = name
			if err := s.set(text); err != nil {
				problems = append(problems, strict.Problem{Path: name, Message: err.Error()})
			}
		case strings.HasPrefix(name, envPrefix) && name != envConfig && !ofKubernetes(name, text):
			hint := ""
			if near, ok := strict.Closest(name, names); ok {
				hint = strict.DidYouMean(near)
			}
			problems = append(problems, strict.Problem{Path: name, Message: "unknown variable", Hint: hint})
		}
	}
	return problems
}

var serviceLink = regexp.MustCompile(`_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?$`)

// ofKubernetes reports whether the variable is one that Kubernetes gives every pod
// for a service whose name begins with stint.
func ofKubernetes(name, text string) bool {
	return serviceLink.MatchString(name) || strings.HasSuffix(name, "_PORT") && strings.Contains(text, "://")
}

// noteOrigins notes which settings the file has, and where.
func (c *Config) noteOrigins(path string, doc *strict.Doc) {
	for _, s := range c.settings() {
		line, column := doc.At(s.name)
		// What the file does not have is said to be where its table is.
		l, col := doc.At(s.name[:strings.LastIndexByte(s.name, '.')])
		if line != l || column != col {
			c.origins[s.name] = path + ":" + strconv.Itoa(line)
		}
	}
}
