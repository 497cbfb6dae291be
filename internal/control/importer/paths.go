package importer

import (
	"regexp"
	"strings"
)

// literal returns the pattern for one path.
func literal(text string) string {
	return escape.Replace(text)
}

var escape = strings.NewReplacer("*", "%2A", "{", "%7B", "}", "%7D", "?", "%3F", "#", "%23", " ", "%20", "%", "%25", `\`, "%5C")

// prefix returns the pattern for a path and what is below it, "" for all paths.
func prefix(text string) string {
	if text = strings.TrimRight(text, "/"); text == "" {
		return ""
	}
	return literal(text) + "/**"
}

var (
	plainSegment = regexp.MustCompile(`^[A-Za-z0-9_~!$&',;=:@%-]*$`)
	oneSegment   = regexp.MustCompile(`^(\(\?:|\(\?P?<\w+>|\()?(\\d|\\w|\[0-9\]|\[a-z\]|\[a-z0-9\]|\[a-zA-Z0-9_?-?\]|\[0-9a-f-?\]|\[\\w-\])(\+|\{\d+(,\d*)?\})\)?$`)
	choice       = regexp.MustCompile(`^\((\?:)?([A-Za-z0-9_|.\\-]+)\)$`)
)

// fromRegexp returns the patterns that match the same paths as a regular expression, if it compares
// segments: ^/api/(v1|v2)/users/\d+$.
func fromRegexp(text string) (patterns []string, ok bool) {
	rest, begins := strings.CutPrefix(text, "^")
	if !begins || !strings.HasPrefix(rest, "/") {
		return nil, false
	}
	below := false
	switch {
	case strings.HasSuffix(rest, "(/.*)?$"):
		rest, below = strings.TrimSuffix(rest, "(/.*)?$"), true
	case strings.HasSuffix(rest, "(/|$)(.*)"):
		rest, below = strings.TrimSuffix(rest, "(/|$)(.*)"), true
	case strings.HasSuffix(rest, "(/|$)"):
		rest, below = strings.TrimSuffix(rest, "(/|$)"), true
	case strings.HasSuffix(rest, "/?$"):
		rest = strings.TrimSuffix(rest, "/?$")
	case strings.HasSuffix(rest, "/.*$"), strings.HasSuffix(rest, "/(.*)$"):
		rest, below = rest[:strings.LastIndexByte(rest, '/')], true
	case strings.HasSuffix(rest, "/.*"), strings.HasSuffix(rest, "/(.*)"):
		rest, below = rest[:strings.LastIndexByte(rest, '/')], true
	case strings.HasSuffix(rest, "$") && !strings.HasSuffix(rest, `\$`):
		rest = strings.TrimSuffix(rest, "$")
	case strings.HasSuffix(rest, "/"):
		rest, below = strings.TrimSuffix(rest, "/"), true
	default:
		return nil, false // also what only begins so
	}
	patterns = []string{""}
	rest = strings.ReplaceAll(rest, "[^/]", `\w`)
	for i, s := range strings.Split(rest, "/") {
		if i == 0 {
			continue
		}
		var choices []string
		plain := strings.NewReplacer(`\.`, "", `\-`, "").Replace(s)
		switch m := choice.FindStringSubmatch(s); {
		case oneSegment.MatchString(s):
			choices = []string{"*"}
		case m != nil && !strings.Contains(strings.ReplaceAll(m[2], `\.`, ""), "."):
			choices = strings.Split(unescape.Replace(m[2]), "|")
		case plainSegment.MatchString(plain):
			choices = []string{literal(unescape.Replace(s))}
		default:
			return nil, false
		}
		var all []string
		for _, p := range patterns {
			for _, c := range choices {
				all = append(all, p+"/"+c)
			}
		}
		if patterns = all; len(patterns) > 64 {
			return nil, false
		}
	}
	if below {
		for i := range patterns {
			if patterns[i] == "" || patterns[i] == "/" {
				patterns[i] = ""
				continue
			}
			patterns[i] += "/**"
		}
	}
	return patterns, true
}

var unescape = strings.NewReplacer(`\.`, ".", `\-`, "-")
