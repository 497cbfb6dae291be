package admin

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/record"
	"github.com/stintdev/stint/internal/record/query"
	"github.com/stintdev/stint/rule"
)

// stamp formats an instant for people who look for it in logs.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// stepsThen describes a decision as it was recorded.
func stepsThen(e *record.Event) []string {
	where := ""
	if e.Node != "" {
		where = " on node " + shown(e.Node)
	}
	if e.Region != "" {
		where += " in region " + shown(e.Region)
	}
	steps := []string{"Decided at " + stamp(e.At) + where + ".", whoAsked(e)}
	what := strings.TrimSpace(e.Method + " " + shown(e.Path))
	if e.Path == "" {
		what = strings.TrimSpace(e.Method + " of a path that is not recorded")
	}
	if e.Endpoint != "" && e.Endpoint != e.Path {
		what += ", which matches " + shown(e.Endpoint)
	}
	steps = append(steps, "The request: "+what+".")
	if e.Rule != "" && e.Limit != "" {
		text := fmt.Sprintf("%s/%s: %d of %d used, and this request costs %d.", shown(e.Rule), shown(e.Limit), e.Used, e.Max, e.Cost)
		if e.Shadow {
			text += " The rule was not enforced."
		}
		if e.Cached {
			text += " This was remembered from a moment before, not counted again."
		}
		steps = append(steps, text)
	}
	steps = append(steps, wasDecided(e))
	if e.Weight > 1 {
		steps = append(steps, "The record has this one for about "+strconv.FormatInt(e.Weight, 10)+" that are like it.")
	}
	return steps
}

// whoAsked describes the client of a recorded decision, and how it was identified, as far as that is recorded.
func whoAsked(e *record.Event) string {
	var names []string
	for _, n := range []struct{ what, id string }{{"user ", e.User}, {"API key ", e.Key}, {"tenant ", e.Tenant}, {"tier ", e.Tier}, {"address ", e.IP}} {
		if n.id != "" {
			names = append(names, n.what+shown(n.id))
		}
	}
	how := identified[e.Source]
	switch {
	case e.Outcome == engine.Unauthorized && e.Unaccepted == "":
		how = " Its credentials were rejected; why is not recorded."
	case e.Outcome == engine.Unauthorized:
		how = " Its credentials were rejected: " + why(e.Unaccepted) + "."
	case e.Unaccepted != "":
		how += " Its token was not accepted: " + why(e.Unaccepted) + "."
	case e.Source == "" && len(names) > 0:
		how = " How it was identified is not recorded."
	}
	if len(names) == 0 {
		return "The client: unknown." + how
	}
	return "The client: " + strings.Join(names, ", ") + "." + how
}

// identified says how a client was identified, by [record.Event].Source.
var identified = map[string]string{
	identity.ByKey.String():    " It was identified by the API key.",
	identity.ByJWT.String():    " It was identified by a token.",
	identity.ByHeader.String(): " It was identified by a header of a trusted proxy.",
	identity.ByIP.String():     " It was identified by its address only.",
	record.SourceGiven:         " It was named by the program that asked.",
}

// why says in words why credentials were not accepted.
func why(name string) string {
	for r := identity.NoCredentials; r <= identity.HeaderInvalid; r++ {
		if r.String() == name {
			return r.Text()
		}
	}
	return name
}

// wasDecided describes what became of a recorded request.
func wasDecided(e *record.Event) string {
	by, status, again := "", "", ""
	if e.Rule != "" {
		by = " by rule " + shown(e.Rule)
	}
	if e.Status != 0 {
		status = " with status " + strconv.Itoa(e.Status)
	}
	if at := couldPass(e); !at.IsZero() {
		again = " It could have passed in " + brief(e.RetryAfter) + ", at " + stamp(at) + ", if no other request had come."
	} else if e.RetryAfter == stint.Never && !e.Outcome.Passed() {
		again = " It could never have passed."
	}
	switch e.Outcome {
	case engine.Allowed:
		if e.Shadow {
			return "It passed. Rule " + shown(e.Rule) + " would have denied it."
		}
		return "It passed."
	case engine.Throttled:
		return "It passed after it was held for " + brief(e.Waited) + by + "."
	case engine.Exempt:
		return "It passed without being counted" + by + "."
	case engine.Denied:
		return "It was denied" + status + by + "." + again
	case engine.Banned:
		if e.Rule == "" {
			by = " by a ban list"
		}
		return "It was denied" + status + by + ", since its client was banned." + again
	case engine.Blocked:
		return "It was blocked" + status + by + "."
	case engine.Unavailable:
		return "It was denied" + status + by + ", since the counter could not be reached." + again
	default:
		return "It was rejected" + status + "." + again
	}
}

// notRecorded says why the record may not have a decision.
func notRecorded(id engine.ID, around *record.Around, unsampled bool, now time.Time) string {
	at := id.Time()
	text := "the record has no decision " + id.String() + ". "
	switch {
	case id[6]>>4 != 7 || !query.Valid(at) || at.After(now.Add(time.Hour)):
		return text + "The id is not one that Stint has made: check that it was copied whole"
	case around.Dropped:
		return text + "It was made at " + stamp(at) + ", and the events of " + record.MonthOf(at).String() +
			" are no longer in the database: if they are archived, \"stint archive restore " + record.MonthOf(at).String() + "\" brings them back"
	case around.Oldest.IsZero():
		return text + "It was made at " + stamp(at) + ", and the record is empty"
	case at.Before(around.Oldest):
		return text + "It was made at " + stamp(at) + ", and the oldest event in the record is of " + stamp(around.Oldest) + ": older ones are deleted, or archived"
	}
	text += "It was made at " + stamp(at) + ". "
	if now.Sub(at) < 10*time.Second {
		return text + "Decisions are recorded some seconds later: try again"
	}
	passed := "only a sample is recorded"
	if unsampled {
		passed = "none is recorded"
	}
	text += "Of requests that passed, " + passed + "; of many denials of a client in one second, one is recorded for all; requests that were only asked about are not recorded; " +
		"and a server does not record what it decides while recording is off"
	const most = 3
	for i := range around.StandIns[:min(len(around.StandIns), most)] {
		e := &around.StandIns[i]
		if i == 0 {
			text += ". In that second, these stand for others:"
		}
		who := "address " + shown(e.IP)
		if e.User != "" {
			who = "user " + shown(e.User)
		} else if e.Key != "" {
			who = "API key " + shown(e.Key)
		}
		text += fmt.Sprintf(" %v (%d %s by %s, %s)", e.ID, e.Weight, e.Outcome, shown(e.Rule), who)
	}
	return text
}

// notKept says what the record does not keep, and what follows from that.
func (a *API) notKept(e *record.Event, r *rule.Compiled, sharing *Sharing) []string {
	out := []string{"Headers and claims are not recorded: rules that match or count by them, or take a cost from them, are evaluated as if there were none."}
	add := func(is bool, text string) {
		if is {
			out = append(out, text)
		}
	}
	_, whole := wholePath(e)
	add(!whole, "The path is not recorded in full, so it is not known what would be decided now.")
	add(e.Outcome == engine.Unauthorized, "Credentials are not recorded, so it is not known whether they would be accepted now.")
	add(len(e.IP) == 32 || strings.Contains(e.IP, "/"), "Addresses are hashed or shortened in the record, so rules and lists for addresses are not evaluated.")
	add(a.options.Catalog == nil, "Rules are in a file, so it is not known whether they have changed since.")
	add(e.Rule != "" && r == nil, "There is no rule "+shown(e.Rule)+" now.")
	add(e.Limit != "" && sharing == nil, "Who else used the counter is not known: what it counts by is not recorded, or there is no such limit now.")
	if sharing == nil {
		return out
	}
	add(true, "Others are those of requests that this rule decided: of those that passed, a sample.")
	add(slices.Contains(sharing.CountBy, "ip") && strings.Contains(e.IP, ":"), "Addresses of IPv6 are counted by their network, and shown by their own.")
	add(!sharing.Complete, "There are more events in this time than were read.")
	return out
}

// ofWhom says whose requests a counter is about, for a customer.
var ofWhom = map[rule.Dimension]string{
	"user": " for your account", "api_key": " for your API key", "tenant": " for your organization", "ip": " for your address", "global": " for all customers together",
}

// customer says what to tell the customer, without names of rules, users or nodes.
func (a *API) customer(e *record.Event, now *Explanation, since []Change) string {
	request := "Your request"
	if path, ok := wholePath(e); ok && e.Path != "" && len(path) <= 100 {
		request += " " + strings.TrimSpace(e.Method+" "+shown(path))
	}
	request += " on " + e.At.UTC().Format("2 January 2006 at 15:04:05 UTC")
	switch e.Outcome {
	case engine.Allowed, engine.Exempt:
		return request + " was served: it was not limited."
	case engine.Throttled:
		return request + " was served after a delay of " + spoken(e.Waited) + ", because requests came faster than they are served."
	case engine.Unauthorized:
		return request + " was not served, because the credentials that came with it were not accepted."
	case engine.Blocked:
		return request + " was not served, because requests of this kind are not permitted."
	case engine.Unavailable:
		return request + " was not served because of a fault on our side, not because of anything you did."
	case engine.Denied, engine.Banned: // over a limit
	}
	text := request + " was not served, because "
	switch {
	case e.Outcome == engine.Banned && e.RetryAfter != stint.Never:
		text += "too many requests had been over a limit before."
	case e.Outcome == engine.Banned:
		return text + "requests of your account or from your address are not accepted."
	case e.RetryAfter == stint.Never:
		return text + "it asks for more at once than " + a.limitThen(e, now, since) + " ever permits."
	default:
		text += a.limitThen(e, now, since) + " had been reached."
	}
	if at := couldPass(e); !at.IsZero() {
		text += " It could have been repeated " + spoken(e.RetryAfter) + " later, at " + at.Add(time.Second-1).UTC().Format("15:04:05 UTC on 2 January 2006") + "."
	}
	switch {
	case now == nil:
	case now.Allowed:
		text += " It would be served now."
	case now.RetryAfter != nil && *now.RetryAfter > 0:
		text += " It would be served in " + spoken(time.Duration(*now.RetryAfter*float64(time.Second))) + "."
	}
	return text
}

// limitThen describes the limit of a decision for a customer. Its window is known if nothing has changed since.
func (a *API) limitThen(e *record.Event, now *Explanation, since []Change) string {
	of := ""
	if r := a.ruleNamed(e.Rule); r != nil && len(r.CountBy()) == 1 {
		of = ofWhom[r.CountBy()[0]]
	}
	l, known := limitNow(e, now)
	if !known || l.Max != e.Max || len(since) > 0 {
		return fmt.Sprintf("the limit of %d%s", e.Max, of)
	}
	if l.Algorithm == stint.Concurrency {
		return fmt.Sprintf("the limit of %d at the same time%s", e.Max, of)
	}
	what := plural(e.Max, "request", "requests")
	if r := a.ruleNamed(e.Rule); e.Cost != 1 || r != nil && meterOf(r) != "" {
		what = plural(e.Max, "unit", "units")
	}
	return "the limit of " + what + " " + per(l.Window) + of
}

func meterOf(r *rule.Compiled) rule.Meter {
	m, _ := r.Meter()
	return m
}

// per describes a window for a customer, such as per minute, or in 90 seconds.
func per(w stint.Window) string {
	switch unit, _, _ := strings.Cut(w.String(), " "); unit {
	case "1s":
		return "per second"
	case "1m":
		return "per minute"
	case "1h":
		return "per hour"
	case "1d":
		return "per day"
	case "day", "week", "month":
		return "per " + unit
	}
	return "in " + spoken(w.Length())
}

// spoken is brief in words, for a customer.
func spoken(d time.Duration) string {
	number, unit, _ := strings.Cut(brief(d), " ")
	n, _ := strconv.ParseInt(number, 10, 64) // it is a number
	word, ok := map[string]string{"s": "second", "min": "minute", "h": "hour", "d": "day"}[unit]
	if !ok {
		return "less than a second"
	}
	return plural(n, word, word+"s")
}

// plural returns a number with a word.
func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.FormatInt(n, 10) + " " + many
}
