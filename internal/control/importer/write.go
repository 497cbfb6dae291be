package importer

import (
	"strings"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// write returns the config file.
func (m *importer) write(all []*built) string {
	b := []byte("# Limits of " + m.source + ", imported by stint import.\n")
	if n := len(m.report.Missing); n > 0 {
		b = append(b, "#\n# Not imported, or not the same:\n"...)
		for _, f := range m.report.Missing {
			b = append(b, "#   "+comment(f.String())+"\n"...)
		}
	}
	if m.identity.TrustedProxies = valid(m.identity.TrustedProxies); len(m.identity.TrustedProxies) == 0 {
		m.identity.ForwardedHeader = "" // it is believed of trusted proxies only
	}
	if len(m.identity.TrustedProxies) > 0 || m.identity.APIKeyPrefix != "" {
		b = append(b, '\n')
		b = appendTOML(b, struct {
			Identity settings `json:"identity"`
		}{m.identity})
	}
	for _, r := range all {
		b = append(b, "\n# "+comment(r.from.String()+": "+clip(r.from.what))+"\n"...)
		if z := r.from.of; z != nil {
			b = append(b, "# "+comment(z.pos.String()+": "+clip(z.String()))+"\n"...)
		}
		if r.why != "" {
			b = append(b, "# "+r.why+"\n"...)
		}
		b = appendTOML(b, rule.File{Rules: []rule.Rule{r.Rule}})
	}
	return string(m.extra.write(b))
}

// write appends tiers, users and keys.
func (x *extra) write(b []byte) []byte {
	about := func(key string) {
		b = append(b, '\n')
		if at, ok := x.at[key]; ok {
			b = append(b, "# "+comment(at.String())+"\n"...)
		}
	}
	for _, t := range x.doc.Tiers {
		about("tier " + t.Name)
		b = appendTOML(b, rule.File{Tiers: []rule.Tier{t}})
	}
	for _, u := range x.doc.Users {
		about("user " + u.ID)
		b = appendTOML(b, catalog.Document{Users: []catalog.User{u}})
	}
	for _, k := range x.doc.APIKeys {
		about("key " + k.ID)
		b = appendTOML(b, catalog.Document{APIKeys: []catalog.APIKey{k}})
	}
	return b
}

func appendTOML(b []byte, v any) []byte {
	b, _ = strict.AppendTOML(b, v) // these values can be written
	return b
}

// comment returns the text in one line.
func comment(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}
