package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// ExplainRequest is a request to explain.
type ExplainRequest struct {
	Method  string                  `json:"method,omitempty" doc:"The method. Default: GET." example:"GET"`
	Path    string                  `json:"path,omitempty" doc:"The path. Default: /." example:"/search"`
	IP      string                  `json:"ip,omitempty" doc:"The address of the other end of the connection." example:"192.0.2.1"`
	User    string                  `json:"user,omitempty" doc:"The user. It is taken as given, and headers are not used to identify the client." example:"alice"`
	Tenant  string                  `json:"tenant,omitempty" doc:"The tenant, taken as given." example:"acme"`
	APIKey  string                  `json:"api_key,omitempty" doc:"The text of an API key, which is checked like that of a client; or the id of one, which is taken as given." example:"k3jq8w2n"`
	Tier    string                  `json:"tier,omitempty" doc:"The tier, overriding the known one." example:"pro"`
	Headers map[string]HeaderValues `json:"headers,omitempty" doc:"The headers: a text or a list of texts each."`
	Cost    int64                   `json:"cost,omitempty" doc:"The cost, overriding that of the rules." example:"1"`
}

// HeaderValues are the values of a header. In JSON a single value may be a string.
type HeaderValues []string

// UnmarshalStrict implements [strict.Unmarshaler].
func (v *HeaderValues) UnmarshalStrict(found strict.Kind, decode func(into any)) error {
	switch found {
	case strict.String:
		*v = make(HeaderValues, 1)
		decode(&(*v)[0])
	case strict.Array:
		decode((*[]string)(v))
	default:
		return errors.New("found " + found.String() + ", want a text or a list of texts")
	}
	return nil
}

// Explanation is the decision about a request, and why.
type Explanation struct {
	Outcome    string           `json:"outcome" enum:"allowed,throttled,exempt,denied,banned,blocked,unauthorized,unavailable" doc:"The outcome." example:"denied"`
	Allowed    bool             `json:"allowed" doc:"Whether the request would pass." example:"false"`
	Rule       string           `json:"rule,omitempty" doc:"The rule that decides." example:"search"`
	Reason     string           `json:"reason,omitempty" doc:"The message to the client." example:"too many searches"`
	RetryAfter *float64         `json:"retry_after" doc:"Seconds until the request would pass; 0: now, or unknown; null: never." example:"12.5"`
	Subject    ExplainedSubject `json:"subject" doc:"The client."`
	Limits     []ExplainedLimit `json:"limits" nullable:"false" doc:"The limits that apply, the one that decides first, and those of log_only rules last."`
	Steps      []string         `json:"steps" nullable:"false" doc:"The same in sentences: who the client is and how it was identified; whether it is banned or exempt; each rule that applies, with its limits; and the decision." example:"[\"It passes.\"]"`
	Rules      []ExplainedRule  `json:"rules" nullable:"false" doc:"All rules, in the order of priority: why each applies or does not. Empty, if no rule is evaluated."`
}

// ExplainedSubject is the client.
type ExplainedSubject struct {
	User   string `json:"user" doc:"The user. Empty, if unknown." example:"alice"`
	Tenant string `json:"tenant" doc:"The tenant." example:"acme"`
	Key    string `json:"key" doc:"The id of the API key." example:"k3jq8w2n"`
	Tier   string `json:"tier" doc:"The tier." example:"pro"`
	IP     string `json:"ip" doc:"The address." example:"192.0.2.1"`
	Source string `json:"source" enum:"given,key,jwt,header,ip" doc:"How the client was identified." example:"key"`
}

// ExplainedLimit is a limit that applies to a request.
type ExplainedLimit struct {
	Rule       string   `json:"rule" doc:"The rule." example:"search"`
	Name       string   `json:"name" doc:"The name of the limit." example:"per-minute"`
	Endpoint   string   `json:"endpoint,omitempty" doc:"The path pattern that matched." example:"/search"`
	Limit      string   `json:"limit" doc:"The limit." example:"100/1m"`
	Max        int64    `json:"max" doc:"The size of the limit." example:"100"`
	Remaining  int64    `json:"remaining" doc:"The units left." example:"12"`
	ResetAfter float64  `json:"reset_after" doc:"Seconds until all units are back." example:"42.5"`
	RetryAfter *float64 `json:"retry_after" doc:"Seconds until the request would pass; 0: now; null: never." example:"0"`
	Allowed    bool     `json:"allowed" doc:"Whether the limit lets the request pass." example:"true"`
	Shadow     bool     `json:"shadow" doc:"Whether the rule is log_only and denies nothing." example:"false"`
	Penalty    bool     `json:"penalty" doc:"True for a penalty: remaining is then the number of violations until a ban." example:"false"`
}

// ExplainedRule says whether a rule applies to a request.
type ExplainedRule struct {
	Rule     string               `json:"rule" doc:"The name of the rule." example:"search"`
	Matched  bool                 `json:"matched" doc:"Whether all conditions are met." example:"true"`
	Reason   string               `json:"reason,omitempty" doc:"The first condition that is not met." example:"method POST is not GET"`
	BeatenBy string               `json:"beaten_by,omitempty" doc:"The rule of the same group that applies instead." example:"search-pro"`
	Endpoint string               `json:"endpoint,omitempty" doc:"The path pattern that matched." example:"/search"`
	Limits   []ExplainedRuleLimit `json:"limits,omitempty" nullable:"false" doc:"The limits for this request, if the rule matches."`
}

// ExplainedRuleLimit is a limit of a rule, with the value for a request.
type ExplainedRuleLimit struct {
	Name    string        `json:"name" doc:"The name of the limit." example:"per-minute"`
	Limit   string        `json:"limit" doc:"The limit, or unlimited." example:"100/1m"`
	Source  string        `json:"source" doc:"Where the limit comes from: api_key, user, tier NAME, or rule." example:"tier pro"`
	Key     string        `json:"key,omitempty" doc:"The key of the counter; empty if unlimited." example:"search.per-minute:user=alice"`
	Lease   rule.Duration `json:"lease,omitzero" doc:"For how long nodes take units ahead of requests. Empty: not at all." example:"100ms"`
	Split   int           `json:"split,omitempty" doc:"Among how many counters the limit is divided. 0: it has one." example:"8"`
	Regions rule.Regions  `json:"regions,omitempty" doc:"How regions share the counter. Empty: each has its own." example:"gossip"`
}

func (a *API) addExplain() {
	addQuery(a, operation{
		ID: "explainRequest", Method: http.MethodPost, Path: "/explain", Tag: tagSubjects,
		Summary: "Explain a decision", Description: "Returns what would be decided about a request, and why. It changes nothing and counts nothing.",
	}, catalog.Viewer, func(ctx context.Context, in *struct{ Body ExplainRequest }) (Explanation, error) {
		q, err := in.Body.request(a.options.Resolver().KeyHeader())
		if err != nil {
			return Explanation{}, err
		}
		x, err := a.options.Engine.Explain(ctx, q)
		if err != nil {
			return Explanation{}, err
		}
		return explained(&in.Body, &q, &x), nil
	})
}

// request returns the request for the engine.
func (e *ExplainRequest) request(keyHeader string) (engine.Request, error) {
	var p strict.Report
	q := engine.Request{Method: cmp.Or(e.Method, http.MethodGet), Path: cmp.Or(e.Path, "/"), Cost: e.Cost}
	if len(q.Method) > 32 || strings.ContainsFunc(q.Method, func(c rune) bool { return (c < 'A' || c > 'Z') && c != '-' && c != '_' }) {
		p.Refuse("method", e.Method, "a method in upper case, such as GET", "")
	}
	if q.Path[0] != '/' {
		p.Refuse("path", e.Path, "a path that starts with a slash, such as /search", "")
	}
	if e.IP != "" {
		var err error
		if q.Peer, err = netip.ParseAddr(e.IP); err != nil {
			p.Refuse("ip", e.IP, "an address, such as 192.0.2.1 or 2001:db8::1", "")
		}
	}
	if e.Cost < 0 {
		p.Refuse("cost", strconv.FormatInt(e.Cost, 10), "1 or more, or 0 for the cost of the rules", "")
	}
	who := identity.Subject{User: e.User, Tenant: e.Tenant, Tier: e.Tier, IP: q.Peer}
	for _, id := range []struct{ field, value string }{{"user", e.User}, {"tenant", e.Tenant}, {"tier", e.Tier}} {
		if id.value != "" && !identity.ValidID(id.value) {
			p.Refuse(id.field, id.value, "at most 255 bytes without control characters", "")
		}
	}
	q.Headers = e.headers(&p)
	given := e.User != "" || e.Tenant != "" || e.Tier != ""
	switch secret := strings.Contains(e.APIKey, "_"); { // ids have no underscore
	case e.APIKey == "":
	case len(e.APIKey) > 512 || !identity.ValidID(e.APIKey): // a secret must not be repeated
		p.Add("api_key", "want the text of an API key, or its id", "")
	case secret && given:
		p.Add("api_key", "is the text of a key, which identifies the client: remove user, tenant and tier, or send the id of the key", "")
	case secret && q.Headers[keyHeader] != nil:
		p.Add("api_key", "is sent as the header "+keyHeader+", which is also given: want one of them", "")
	case secret:
		q.Headers[keyHeader] = []string{e.APIKey}
	default:
		who.Key, given = e.APIKey, true
	}
	if given {
		q.Subject = &who
	}
	return q, p.Problems.Err()
}

// headers returns the headers by canonical name.
func (e *ExplainRequest) headers(p *strict.Report) map[string][]string {
	out := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		path, canonical := strict.Member("headers", name), textproto.CanonicalMIMEHeaderKey(name)
		switch {
		case name == "" || strings.ContainsFunc(name, func(c rune) bool {
			return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
		}):
			p.Add(path, "is not a valid header name", "")
		case out[canonical] != nil:
			p.Add(path, "is given twice: want it once, with a list of values", "")
		default:
			out[canonical] = append([]string{}, e.Headers[name]...)
		}
	}
	return out
}

// explained returns the explanation of the engine as the API has it.
func explained(asked *ExplainRequest, q *engine.Request, x *engine.Explanation) Explanation {
	v := &x.Verdict
	out := Explanation{
		Outcome: v.Outcome.String(), Allowed: v.Outcome.Passed(), Reason: strings.TrimPrefix(v.Reason, "identity: "), RetryAfter: wait(v.RetryAfter),
		Subject: ExplainedSubject{User: v.Subject.User, Tenant: v.Subject.Tenant, Key: v.Subject.Key, Tier: v.Subject.Tier, Source: v.Subject.Source.String()},
		Limits:  []ExplainedLimit{}, Rules: make([]ExplainedRule, len(x.Rules)),
	}
	if q.Subject != nil {
		out.Subject.Source = "given"
	}
	if v.Subject.IP.IsValid() {
		out.Subject.IP = v.Subject.IP.String()
	}
	if v.Rule != nil {
		out.Rule = v.Rule.Name
	}
	for i := range v.Limits {
		l := &v.Limits[i]
		one := ExplainedLimit{
			Rule: l.Rule.Name, Name: l.Name, Endpoint: l.Endpoint, Limit: l.Limit.String(), Max: l.Decision.Limit, Remaining: l.Decision.Remaining,
			ResetAfter: l.Decision.ResetAfter.Seconds(), RetryAfter: wait(l.Decision.RetryAfter), Allowed: l.Decision.Allowed, Shadow: l.Shadow, Penalty: l.Penalty != nil,
		}
		if l.Penalty != nil {
			one.Name, one.Limit = "penalty", l.Penalty.String()
		}
		out.Limits = append(out.Limits, one)
	}
	for i, r := range x.Rules {
		one := ExplainedRule{Rule: r.Rule, Matched: r.Matched, Reason: r.Reason, BeatenBy: r.BeatenBy, Endpoint: r.Endpoint}
		for _, l := range r.Limits {
			one.Limits = append(one.Limits, ExplainedRuleLimit(l))
		}
		out.Rules[i] = one
	}
	out.Steps = stepsOf(asked, q, x)
	return out
}

// stepsOf describes the decision in sentences.
func stepsOf(asked *ExplainRequest, q *engine.Request, x *engine.Explanation) []string {
	v := &x.Verdict
	steps := whoAsks(asked, q, v)
	switch {
	case v.Subject.Banned != nil:
		return append(steps, "It is banned: "+listed(v.Subject.Banned)+". No rule is evaluated.", decides(v))
	case v.Subject.Exempt != nil:
		return append(steps, "It is exempt: "+listed(v.Subject.Exempt)+". No rule is evaluated.", decides(v))
	case v.Outcome != engine.Unauthorized:
		steps = append(steps, "It is neither banned nor exempt.")
	}
	others := 0
	for i := range x.Rules {
		r := &x.Rules[i]
		switch {
		case !r.Matched:
			others++
		case r.BeatenBy != "":
			steps = append(steps, fmt.Sprintf("Rule %s matches, but %s of the same group comes first.", shown(r.Rule), shown(r.BeatenBy)))
		default:
			steps = append(steps, ruleSays(r, v))
		}
	}
	switch {
	case x.Rules == nil:
	case others == len(x.Rules):
		steps = append(steps, "No rule applies.")
	case others == 1:
		steps = append(steps, "One more rule does not apply.")
	case others > 1:
		steps = append(steps, strconv.Itoa(others)+" more rules do not apply.")
	}
	return append(steps, decides(v))
}

// whoAsks describes the client, and how it was identified.
func whoAsks(asked *ExplainRequest, q *engine.Request, v *engine.Verdict) (steps []string) {
	s := &v.Subject
	var names []string
	for _, n := range []struct{ what, id string }{{"user ", s.User}, {"API key ", s.Key}, {"tenant ", s.Tenant}} {
		if n.id != "" {
			names = append(names, n.what+shown(n.id))
		}
	}
	at := ""
	if s.IP.IsValid() {
		at = " at the address " + s.IP.String()
	}
	who := strings.Join(names, ", ")
	if who == "" {
		who = "an unknown client"
	}
	who += at
	switch {
	case q.Subject != nil:
		steps = append(steps, "Given: "+who+".")
	case v.Outcome == engine.Unauthorized:
		steps = append(steps, "The credentials are rejected: "+strings.TrimPrefix(v.Reason, "identity: ")+".")
	case s.Banned != nil && s.Source == identity.ByIP:
		steps = append(steps, "The client"+at+" is not identified any further.")
	case s.Source == identity.ByKey:
		steps = append(steps, "The API key is valid: "+who+".")
	case s.Source == identity.ByJWT:
		steps = append(steps, "The token is valid: "+who+".")
	case s.Source == identity.ByHeader:
		steps = append(steps, "A header from a trusted proxy identifies "+who+".")
	case s.Unaccepted != identity.NoReason:
		steps = append(steps, "The credentials were not accepted ("+s.Unaccepted.String()+"): "+who+".")
	case asked.APIKey != "":
		steps = append(steps, "This node does not use API keys: "+who+".")
	default:
		steps = append(steps, "No credentials: "+who+".")
	}
	if s.Tier != "" {
		steps = append(steps, "The tier is "+shown(s.Tier)+".")
	}
	if s.UserError != nil {
		steps = append(steps, "The directory could not be read: a tier, limits or a block may be missing.")
	}
	return steps
}

// listed describes a ban or an exemption.
func listed(e *identity.Entry) string {
	text := map[identity.Kind]string{identity.KindIP: "the address or network ", identity.KindUser: "user ", identity.KindTenant: "tenant ", identity.KindKey: "API key "}[e.Kind] + shown(e.Value) + " is listed"
	if e.Reason != "" {
		text += " (" + shown(e.Reason) + ")"
	}
	if !e.Until.IsZero() {
		text += ", until " + e.Until.UTC().Format(time.RFC3339)
	}
	return text
}

// ruleSays describes a rule that applies, with its limits.
func ruleSays(r *rule.Explained, v *engine.Verdict) string {
	text := "Rule " + shown(r.Rule) + " applies"
	if r.Endpoint != "" {
		text += " at " + r.Endpoint
	}
	var says []string
	for _, l := range r.Limits {
		if l.Limit == "unlimited" {
			says = append(says, shown(r.Rule)+"/"+shown(l.Name)+": unlimited, by "+l.Source)
		}
	}
	tried := ""
	for i := range v.Limits {
		if l := &v.Limits[i]; l.Rule.Name == r.Rule {
			says = append(says, limitSays(l))
			switch {
			case l.Rule.Action == rule.LogOnly:
				tried = ", in log_only mode"
			case l.Rule.Action == rule.Mark:
				tried = ", and marks requests over its limits"
			case l.Shadow:
				tried = ", and is only tried out on this client"
			}
		}
	}
	text += tried
	switch {
	case len(says) > 0:
		return text + ". " + strings.Join(says, "; ") + "."
	case v.Rule != nil && v.Rule.Name == r.Rule && v.Rule.Action == rule.Block:
		return text + ", and blocks."
	case v.Rule != nil && v.Rule.Name == r.Rule && v.Rule.Action == rule.Allow:
		return text + ", and allows."
	case v.Rule != nil && (v.Rule.Action == rule.Block || v.Rule.Action == rule.Allow):
		return text + ", but is not evaluated: " + shown(v.Rule.Name) + " decides."
	}
	return text + ", but is not evaluated."
}

// limitName returns the name of a limit with that of its rule.
func limitName(l *engine.Limit) string {
	if l.Penalty != nil {
		return shown(l.Rule.Name) + "/penalty"
	}
	return shown(l.Rule.Name) + "/" + shown(l.Name)
}

// limitSays describes the state of a limit.
func limitSays(l *engine.Limit) string {
	d := &l.Decision
	name := limitName(l)
	switch {
	case d.Basis == stint.Open:
		return name + ": the counter cannot be reached, and the request passes"
	case d.Basis == stint.Closed:
		return name + ": the counter cannot be reached, and the request is denied"
	case l.Penalty != nil && !d.Allowed:
		return name + ": banned after violations; " + wouldPass(d.RetryAfter)
	case l.Penalty != nil && d.Remaining == 1:
		return name + ": one more violation leads to a ban"
	case l.Penalty != nil:
		return name + ": " + strconv.FormatInt(d.Remaining, 10) + " more violations lead to a ban"
	}
	text := fmt.Sprintf("%s: %d of %d left", name, d.Remaining, d.Limit)
	if !d.Allowed {
		return text + fmt.Sprintf(", and this request costs %d: ", l.Cost) + wouldPass(d.RetryAfter)
	}
	if d.ResetAfter > 0 {
		text += ", full in " + brief(d.ResetAfter)
	}
	return text
}

// decides describes the decision.
func decides(v *engine.Verdict) string {
	limit := ""
	if b := v.Binding(); b != nil {
		limit = limitName(b)
	}
	by := ""
	if v.Rule != nil {
		by = " by rule " + shown(v.Rule.Name)
	}
	status := ""
	if v.Status != 0 {
		status = " with " + strconv.Itoa(v.Status)
	}
	switch v.Outcome {
	case engine.Exempt:
		return "It passes without being counted" + by + "."
	case engine.Allowed, engine.Throttled:
		text := "It passes."
		if limit != "" {
			text += " The limit with the smallest share left is " + limit + "."
		}
		if l := v.Shadowed(); l != nil {
			text += " Rule " + shown(l.Rule.Name) + " would deny it, but is only tried out."
		}
		return text
	case engine.Denied:
		if r := v.Rule; r != nil && r.Action == rule.Throttle && v.RetryAfter <= r.MaxDelay {
			return "It is delayed by " + limit + ", for at most " + brief(v.RetryAfter) + ", and then passes unless other requests use up the limit."
		}
		return "It is denied" + status + " by " + limit + "; " + wouldPass(v.RetryAfter) + "."
	case engine.Banned:
		if v.Subject.Banned == nil {
			return "It is denied" + status + " by a penalty of rule " + shown(v.Rule.Name) + "; " + wouldPass(v.RetryAfter) + "."
		}
		return "It is denied" + status + "; " + wouldPass(v.RetryAfter) + "."
	case engine.Unavailable:
		return "It is denied" + status + by + ": the counter cannot be reached, and the rule fails closed."
	default: // blocked, unauthorized
		return "It is denied" + status + by + "."
	}
}

// wouldPass says when the request would pass.
func wouldPass(d time.Duration) string {
	if d == stint.Never {
		return "it would never pass"
	}
	return "it would pass in " + brief(d)
}

// brief formats a duration in one unit, rounded up.
func brief(d time.Duration) string {
	for _, u := range []struct {
		unit, below time.Duration
		name        string
	}{
		{time.Millisecond, time.Second, "ms"},
		{time.Second, 2 * time.Minute, "s"},
		{time.Minute, 2 * time.Hour, "min"},
		{time.Hour, 48 * time.Hour, "h"},
	} {
		if d < u.below {
			return strconv.FormatInt(int64((max(d, 0)+u.unit-1)/u.unit), 10) + " " + u.name
		}
	}
	const day = 24 * time.Hour
	return strconv.FormatInt(int64((d+day-1)/day), 10) + " d"
}
