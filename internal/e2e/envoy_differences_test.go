package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/status"
)

// difference is a difference between Stint and the reference.
type difference struct {
	key    string // docs/envoy.md has it, with the reason
	reason string
	// apply converts a response of the reference to that of Stint, and reports whether they
	// differ. Nil: the comparison sends no such request.
	apply func(*exchange) bool
	shown []step
}

// step is a request, and the responses in brief: of the reference, of Stint, and of a Stint
// with default settings. Empty: it is not sent.
type step struct{ request, theirs, ours, plain string }

// differences are all differences between the reference and Stint. All but the first three
// also exist with envoy.independent and envoy.fixed_months.
var differences = []difference{
	{
		"together",
		"The descriptors of a request are charged all or none, unless the domain has `compat: independent` or `envoy.independent` is set. There each is charged by itself.",
		nil,
		[]step{
			{"three=a | closed=a", "OVER_LIMIT: OK 2, OVER_LIMIT 0", "OVER_LIMIT: OK 2, OVER_LIMIT 0", "OVER_LIMIT: OK 3, OVER_LIMIT 0"},
			{"three=a", "OK: OK 1", "OK: OK 1", "OK: OK 2"},
			{"three=a hits=1 | closed=a", "OVER_LIMIT: OK 0, OVER_LIMIT 0", "OVER_LIMIT: OK 0, OVER_LIMIT 0", "OVER_LIMIT: OK 1, OVER_LIMIT 0"},
			{"three=b hits=0", "OK: OK 3", "OK: OK 3", "OK: OK 3"},
			{"contract hits=5: three=b", "OVER_LIMIT: OVER_LIMIT 0", "OVER_LIMIT: OVER_LIMIT 0", "OVER_LIMIT: OVER_LIMIT 0"},
			{"three=b", "OVER_LIMIT: OVER_LIMIT 0", "OVER_LIMIT: OVER_LIMIT 0", "OK: OK 2"},
		},
	},
	{
		"stopped",
		"With `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`, or without `envoy.independent`, a used-up limit in `shadow_mode`, or in `quota_mode` if the request passes, stops nothing: the others are charged, and deny when they are used up. There they are no longer charged, so they never deny. Expect denials that are missing there, and raise these other limits first if they were never meant to apply.",
		nil, nil, // TestEnvoyStopped
	},
	{
		"calendar",
		"Weeks begin on Monday, months and years on their first day, in UTC, unless `envoy.fixed_months` is set. There they are 7, 30 and 365 days, counted from the first of January 1970.",
		nil, nil, // TestEnvoyCalendar
	},
	{
		"quota",
		"A used-up limit in `quota_mode` is reported as such, and a request is denied if all its limits in `quota_mode` are used up, as in July 2026. In January 2026 it is reported as not used up, without a reset time, and never denies.",
		(*exchange).quota,
		[]step{
			{"quota=a hits=2 | three=q", "OK: OK 0 without reset, OK 2", "OVER_LIMIT: OVER_LIMIT 0, OK 2", ""},
			{"quota=a | quota=b", "OK: OK 0 without reset, OK 0", "OK: OVER_LIMIT 0, OK 0", ""},
			{"quota=a | quota=b", "OK: OK 0 without reset, OK 0 without reset", "OVER_LIMIT: OVER_LIMIT 0, OVER_LIMIT 0", ""},
		},
	},
	{
		"check",
		"A `hits_addend` of 0 checks whether anything is left. There it checks whether more was taken than there was, so a limit whose last hit was just used is reported as not used up.",
		(*exchange).check,
		[]step{
			{"three=c hits=3", "OK: OK 0", "OK: OK 0", "OK: OK 0"},
			{"three=c hits=0", "OK: OK 0", "OVER_LIMIT: OVER_LIMIT 0", "OVER_LIMIT: OVER_LIMIT 0"},
			{"three=c", "OVER_LIMIT: OVER_LIMIT 0", "OVER_LIMIT: OVER_LIMIT 0", "OVER_LIMIT: OVER_LIMIT 0"},
			{"three=c hits=0", "OVER_LIMIT: OVER_LIMIT 0", "OVER_LIMIT: OVER_LIMIT 0", "OVER_LIMIT: OVER_LIMIT 0"},
			{"closed=c hits=0", "OK: OK 0", "OVER_LIMIT: OVER_LIMIT 0", "OVER_LIMIT: OVER_LIMIT 0"},
		},
	},
	{
		"uncharged",
		"A denied request is not counted. There it is, which shows when the limit is raised, or when a request brings another limit; and a descriptor that a request has twice is denied the second time because of the hits of the first.",
		(*exchange).uncharged,
		[]step{
			{"three=d hits=3", "OK: OK 0", "OK: OK 0", ""},
			{"three=d hits=9", "OVER_LIMIT: OVER_LIMIT 0", "OVER_LIMIT: OVER_LIMIT 0", ""},
			{"three=d limit=8/YEAR", "OVER_LIMIT: OVER_LIMIT 0", "OK: OK 4", ""},
			{"three=e hits=4 | three=e", "OVER_LIMIT: OVER_LIMIT 0, OVER_LIMIT 0", "OVER_LIMIT: OVER_LIMIT 0, OK 2", ""},
		},
	},
	{
		"brought",
		"A limit that a request brings applies in every domain. There it does not apply in domains without configuration.",
		nil,
		[]step{{"nowhere: any=a limit=2/YEAR", "OK: OK 0 without limit", "OK: OK 1", "OK: OK 1"}},
	},
	{
		"names",
		"Keys and values are never concatenated, neither to find a limit nor to count: no one can choose a value that is counted with another descriptor. There `a` with the value `b_c` and `a_b` with the value `c` are the same.",
		nil,
		[]step{
			{"a=b_c", "OK: OK 0", "OK: OK 0", "OK: OK 0"},
			{"a_b=c", "OVER_LIMIT: OVER_LIMIT 0", "OK: OK 0", "OK: OK 0"},
			{"a=x,three_y=z", "OK: OK 0", "OK: OK 0", ""},
			{"a=x_three,y=z", "OVER_LIMIT: OVER_LIMIT 0", "OK: OK 0", ""},
			{"three=exact_value", "OK: OK 8", "OK: OK 2", "OK: OK 2"},
		},
	},
	{
		"windows",
		"A counter includes the length of its window. There it only has the start, so in the first minute of an hour, or the first hour of a day, a limit that a request brings may be counted with the configured one.",
		nil,
		[]step{{"three=f hits=2 limit=3/YEAR | three=f limit=3/DAY", "", "OK: OK 1, OK 2", "OK: OK 1, OK 2"}},
	},
	{
		"empty",
		"An entry without a value is matched by the key alone. There also by `key` with the value `*`.",
		nil,
		[]step{
			{"star=x", "OK: OK 4", "OK: OK 4", "OK: OK 4"},
			{"star=", "OK: OK 4", "OK: OK 0 without limit", "OK: OK 0 without limit"},
		},
	},
	{
		"shared",
		"With `share_threshold`, all keys that match a key ending in `*` share one counter. There each key has its own.",
		nil,
		[]step{
			{"pre1=x", "OK: OK 4", "OK: OK 4", "OK: OK 4"},
			{"pre2=x", "OK: OK 4", "OK: OK 3", "OK: OK 3"},
		},
	},
	{
		"remembered",
		"With counters in Redis, a denied request is denied again for up to a second without asking Redis. The state of its other descriptors is then up to a second old, unless each is charged by itself.",
		nil, nil, // TestEnvoyAllOrNone
	},
	{
		"invalid",
		"An invalid request is rejected with `INVALID_ARGUMENT` and the field: no domain, no descriptors, no entries, an empty key, a limit without a unit. There the first two are `UNKNOWN`, others are not noticed, and the last ends the process.",
		nil,
		[]step{
			{" : three=a", "Unknown", "InvalidArgument", "InvalidArgument"},
			{"contract:", "Unknown", "InvalidArgument", "InvalidArgument"},
			{"=x", "OK: OK 0 without limit", "InvalidArgument", "InvalidArgument"},
		}, // TestEnvoyReferenceDies
	},
	{
		"newer",
		"`metadata` and a `*` inside a value of July 2026 are supported. The version of January 2026 rejects the first, and reads the second as a character.",
		nil, nil, // TestEnvoyNewer, TestEnvoyContract
	},
	{
		"protocol",
		"`unit_multiplier` and `is_negative_hits` of the protocol are supported. There they are ignored: hits that are given back are charged.",
		nil, nil, // TestEnvoyNewer
	},
	{
		"metadata",
		"Dynamic metadata has `quotaModeEnabled` and `quotaModeViolations`, as in January 2026, and `metadata`, as in July 2026, which no longer has the others.",
		(*exchange).metadata, nil,
	},
	{
		"down",
		"While Redis is down, or slower than `server.store_budget`, each node decides by its share of the limits, unless `envoy.on_store_failure` is `\"error\"`. There such calls fail, and Envoy's `failure_mode_deny` decides. Both count them as `redis_error`, so alerts on it keep working.",
		nil, nil, // TestEnvoyRedisDown
	},
	{
		"http",
		"`/json` has the method `POST`, is refused for web pages of other sites, and has errors in JSON: 400 for an invalid request, and 503 if it could not be decided. There it has any method, errors in plain text, and always 400. `/healthcheck` says what was checked. There it says `OK`, or nothing.",
		nil, nil, // TestEnvoyHTTP
	},
}

const differentDomains = `
domain: contract
descriptors:
  - key: three
    rate_limit: {unit: year, requests_per_unit: 3}
  - key: three_exact
    value: value
    rate_limit: {unit: year, requests_per_unit: 9}
  - key: closed
    rate_limit: {unit: year, requests_per_unit: 0}
  - key: quota
    quota_mode: true
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: a
    rate_limit: {unit: year, requests_per_unit: 1}
    descriptors:
      - key: three_y
        rate_limit: {unit: year, requests_per_unit: 1}
      - key: y
        rate_limit: {unit: year, requests_per_unit: 1}
  - key: a_b
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: star
    value: "*"
    rate_limit: {unit: year, requests_per_unit: 5}
  - key: pre*
    share_threshold: true
    rate_limit: {unit: year, requests_per_unit: 5}
`

func TestEnvoyDifferences(t *testing.T) {
	t.Parallel()
	dir := writeDomains(t, map[string]string{"contract": differentDomains})
	theirs, ours, redis := startReference(t, dir), serveEnvoy(t, dir).peer, serveEnvoy(t, dir, inRedis(t)...).peer
	plain := serveEnvoy(t, dir, "STINT_ENVOY_INDEPENDENT=false", "STINT_ENVOY_FIXED_MONTHS=false").peer
	for _, d := range differences {
		for _, s := range d.shown {
			q := short(t, s.request)
			for _, c := range []struct {
				p    *peer
				want string
			}{{theirs, s.theirs}, {ours, s.ours}, {redis, s.ours}, {plain, s.plain}} {
				if c.want == "" || c.p == theirs && !d.exists() {
					continue
				}
				if got := brief(c.p.try(t, q)); got != c.want {
					t.Errorf("%s: %s: %s answers %q, want %q", d.key, s.request, c.p.name, got, c.want)
				}
			}
		}
	}
}

// brief returns a response in one line.
func brief(a *rlsv3.RateLimitResponse, err error) string {
	if err != nil {
		return status.Code(err).String()
	}
	var all []string
	for _, s := range a.GetStatuses() {
		text := fmt.Sprintf("%v %d", s.GetCode(), s.GetLimitRemaining())
		if s.GetCurrentLimit() == nil {
			text += " without limit"
		} else if s.GetDurationUntilReset() == nil {
			text += " without reset"
		}
		all = append(all, text)
	}
	return a.GetOverallCode().String() + ": " + strings.Join(all, ", ")
}
