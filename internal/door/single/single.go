// Package single makes the engine of a door that has one limit and no rules of its own:
// it is what the one-line constructors of httplimit and grpclimit share.
//
// # What holds
//
//   - A request is counted by its key: the string that a program's function returns, or
//     the header that a trusted proxy sets. Without one it is counted by the client's
//     address, and without an address together with all others that have none. No
//     request passes uncounted.
//   - A client cannot choose its counter: headers are read from trusted proxies only.
package single

import (
	"errors"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/kit/network"
	"github.com/stintdev/stint/rule"
)

// By says what has a counter of its own. The zero value counts by the address of the
// peer.
type By struct {
	// HeaderOption is what the door calls the option that sets Header, for errors.
	HeaderOption string
	// Header is the header of trusted proxies that holds the key. It needs Proxies.
	Header string
	// Keyed says that the door gives requests a key, as [identity.Subject.User].
	Keyed bool
	// Proxies are the networks of trusted proxies, or their addresses.
	Proxies []string
	// Name is the limit's, for clients and for its counters. Default: "default" for
	// clients, and the text of the limit for its counters.
	Name string
}

// longestName leaves room for the longest suffix in the name of a rule, which has at most
// 64 bytes.
const longestName = 64 - len(".unknown")

// Engine returns an engine with one limit.
func (b By) Engine(store stint.Store, limit string) (*engine.Engine, error) {
	if store == nil {
		return nil, invalid("store", "nil", "a store, such as memstore.New returns")
	}
	parsed, err := stint.ParseRate(limit)
	if err != nil {
		return nil, err
	}
	who, err := b.identity()
	if err != nil {
		return nil, err
	}
	rules, err := b.rules(parsed)
	if err != nil {
		return nil, err
	}
	return engine.New(engine.Options{Store: store, Rules: rules, Identity: who})
}

func (b By) identity() (*identity.Resolver, error) {
	o := identity.Options{UserHeader: b.Header}
	for _, text := range b.Proxies {
		p, want := network.Parse(text)
		if want != "" {
			return nil, invalid("Behind", text, want)
		}
		o.TrustedProxies = append(o.TrustedProxies, p)
	}
	switch {
	case b.HeaderOption != "" && b.Header == "":
		return nil, invalid(b.HeaderOption, "", "a name, such as X-User-ID")
	case b.Header != "" && len(o.TrustedProxies) == 0:
		return nil, invalid(b.HeaderOption, b.Header, "Behind with the networks of the proxies that set it: anyone else could write what they like")
	}
	who, err := identity.New(o)
	if bad := new(stint.InvalidError); errors.As(err, &bad) {
		// The caller knows the options of the door, and not those of identity.
		option := map[string]string{"identity UserHeader": b.HeaderOption, "identity TrustedProxies": "Behind"}[bad.Field]
		return nil, invalid(option, bad.Value, bad.Want)
	}
	return who, err
}

// rules returns a rule for each thing that a request may be counted by. They are of one
// group, so that the first that applies is the only one.
func (b By) rules(limit stint.Limit) (*rule.Set, error) {
	client, counters := b.Name, b.Name
	if b.Name == "" {
		client, counters = "default", nameOf(limit)
	}
	var f rule.File
	add := func(suffix string, by ...rule.Dimension) {
		f.Rules = append(f.Rules, rule.Rule{
			Name: counters + suffix, Group: counters, Priority: len(f.Rules), CountBy: by,
			Limits: []rule.Limit{{Name: client, Limit: limit.String()}},
		})
	}
	if b.Keyed || b.Header != "" {
		add(".key", "user")
	}
	add(".ip", "ip")
	add(".unknown")
	rules, err := rule.Compile(f)
	if err != nil && b.Name != "" {
		// Nothing else can be wrong with the rules: the limit was parsed.
		return nil, invalid("Named", b.Name, "letters, digits and, between them, any of . _ -, at most "+strconv.Itoa(longestName)+" bytes")
	}
	return rules, err
}

// nameOf returns the text of a limit as the name of a rule: 100/1m is 100-1m.
func nameOf(l stint.Limit) string {
	name := strings.Map(func(c rune) rune {
		if c < utf8.RuneSelf && (unicode.IsLetter(c) || unicode.IsDigit(c)) || c == '_' {
			return c
		}
		return '-'
	}, l.String())
	return strings.Trim(name[:min(len(name), longestName)], "-_")
}

func invalid(field, value, want string) error {
	return &stint.InvalidError{Field: field, Value: value, Want: want}
}
