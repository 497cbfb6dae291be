package httplimit

import (
	"cmp"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/door/field"
)

// Problem is the body of an error response, by RFC 9457.
type Problem struct {
	Type   string // default about:blank
	Title  string // default: the text of the status
	Status int
	Detail string

	// ViolatedPolicies are the names of the limits that deny the request, as in the
	// headers.
	ViolatedPolicies []string
	// RetryAfter is how long to wait; negative if waiting does not help. Zero is left
	// out.
	RetryAfter time.Duration
	DecisionID string
}

const registry = "https://iana.org/assignments/http-problem-types#"

var problemTypes = map[engine.Outcome]struct{ uri, title string }{
	engine.Denied:      {registry + "quota-exceeded", "Request cannot be satisfied as assigned quota has been exceeded"},
	engine.Banned:      {registry + "abnormal-usage-detected", "Request cannot be satisfied due to abnormal request pattern detected"},
	engine.Unavailable: {registry + "temporary-reduced-capacity", "Request cannot be satisfied due to temporary server capacity constraints"},
}

// ProblemOf returns the problem of a request that was denied.
func ProblemOf(v *engine.Verdict) Problem {
	p := Problem{Status: v.Status, Detail: reason(v), DecisionID: v.ID.String()}
	p.Type, p.Title = problemTypes[v.Outcome].uri, problemTypes[v.Outcome].title
	if wait, ok := field.RetryAfter(v); ok {
		p.RetryAfter = wait
	} else if v.RetryAfter == stint.Never {
		p.RetryAfter = -1
	}
	for l, at := field.Next(v, 0); l != nil; l, at = field.Next(v, at) {
		if field.Violated(v, l) {
			rule, slash, name := field.PolicyName(v, l)
			p.ViolatedPolicies = append(p.ViolatedPolicies, rule+slash+name)
		}
	}
	return p
}

// reason says why the request was denied: the verdict's reason, or else which limit
// denied it, and when to try again.
func reason(v *engine.Verdict) string {
	if v.Reason != "" {
		return strings.TrimPrefix(v.Reason, "identity: ") // the package does not matter to a client
	}
	wait, ok := field.RetryAfter(v)
	when := ""
	if ok {
		when = " Try again in " + strconv.FormatInt(field.Seconds(wait), 10) + " s."
	}
	switch b := v.Binding(); {
	case v.Outcome == engine.Banned && ok:
		return "Too many requests were over the limit, so all requests are denied for a while." + when
	case v.Outcome == engine.Banned:
		return "Requests from this client are denied."
	case v.Outcome == engine.Unavailable:
		return "Requests cannot be counted at the moment." + when
	case v.Outcome != engine.Denied || b == nil:
		return "This request is denied."
	case ok:
		return "The limit " + b.Name + " (" + b.Limit.String() + ") is used up." + when
	default:
		return "This request costs " + strconv.FormatInt(b.Cost, 10) + ", which is more than the limit " + b.Name +
			" (" + b.Limit.String() + ") ever allows."
	}
}

// Deny answers a request that was denied, with the headers of the sets.
func Deny(w http.ResponseWriter, r *http.Request, s HeaderSet, v *engine.Verdict) {
	s.Set(w.Header(), v)
	ProblemOf(v).Write(w, r)
}

// Write answers a request with the problem. It sets no headers about limits.
func (p Problem) Write(w http.ResponseWriter, r *http.Request) {
	b := scratches.Get().(*scratch)
	defer b.release()
	b.out = p.append(b.out[:0])
	writeError(w, r, p.Status, typeProblem, b.out)
}

func writeError(w http.ResponseWriter, r *http.Request, status int, contentType []string, body []byte) {
	h := w.Header()
	delete(h, "Content-Length") // of another response
	h["Content-Type"] = contentType
	h["X-Content-Type-Options"] = noSniff // details may quote the request
	if status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the client may be gone
	}
}

// Header values that all responses share. They are never written to.
var (
	typeJSON    = []string{"application/json"}
	typeProblem = []string{"application/problem+json"}
	noSniff     = []string{"nosniff"}
)

// append appends the problem as JSON.
func (p *Problem) append(b []byte) []byte {
	b = appendString(append(b, `{"type":`...), cmp.Or(p.Type, "about:blank"))
	b = appendString(append(b, `,"title":`...), cmp.Or(p.Title, http.StatusText(p.Status)))
	b = strconv.AppendInt(append(b, `,"status":`...), int64(p.Status), 10)
	if p.Detail != "" {
		b = appendString(append(b, `,"detail":`...), p.Detail)
	}
	for i, name := range p.ViolatedPolicies {
		if i == 0 {
			b = append(b, `,"violated-policies":[`...)
		} else {
			b = append(b, ',')
		}
		b = appendString(b, name)
	}
	if p.ViolatedPolicies != nil {
		b = append(b, ']')
	}
	if p.RetryAfter != 0 {
		b = appendWait(append(b, `,"retry_after":`...), p.RetryAfter)
	}
	if p.DecisionID != "" {
		b = appendString(append(b, `,"decision_id":`...), p.DecisionID)
	}
	return append(b, '}')
}

// appendWait appends a duration in seconds, or null if it is negative or [stint.Never], which
// means that waiting does not help.
func appendWait(b []byte, d time.Duration) []byte {
	if d < 0 || d == stint.Never {
		return append(b, "null"...)
	}
	return appendSeconds(b, d)
}

// appendSeconds appends a duration in seconds, with up to six decimals.
func appendSeconds(b []byte, d time.Duration) []byte {
	micros := int64((d + time.Microsecond - 1) / time.Microsecond)
	b = strconv.AppendInt(b, micros/1e6, 10)
	if micros %= 1e6; micros == 0 {
		return b
	}
	n := len(b)
	b = strconv.AppendInt(b, micros+1e6, 10)
	b[n] = '.' // replaces the digit of the million, which was added for leading zeros
	for b[len(b)-1] == '0' {
		b = b[:len(b)-1]
	}
	return b
}

// appendString appends a JSON string. Invalid UTF-8 becomes replacement characters.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	from := 0 // what comes before is appended
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c <= '~' && c != '"' && c != '\\' {
			i++
			continue
		}
		b = append(b, s[from:i]...)
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case n > 1:
			b = append(b, s[i:i+n]...)
		case r == utf8.RuneError:
			b = utf8.AppendRune(b, r)
		default:
			b = append(b, '\\', 'u', '0', '0', upperHex[c>>4], upperHex[c&15])
		}
		i += n
		from = i
	}
	return append(append(b, s[from:]...), '"')
}

const upperHex = "0123456789ABCDEF"
