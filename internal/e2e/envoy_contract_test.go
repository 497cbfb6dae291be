package e2e_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

// contractDomains are the domains of the contract.
var contractDomains = map[string]string{"contract": `
domain: contract
descriptors:
  - key: exact
    value: one
    rate_limit: {name: exact, unit: day, requests_per_unit: 9}
  - key: exact
    value: o*
    rate_limit: {name: wildcard, unit: day, requests_per_unit: 9}
  - key: exact
    rate_limit: {name: bare, unit: day, requests_per_unit: 9}
  - key: order
    value: a*
    rate_limit: {name: first, unit: day, requests_per_unit: 9}
  - key: order
    value: ab*
    rate_limit: {name: second, unit: day, requests_per_unit: 9}
  - key: each
    value: a*
    rate_limit: {unit: day, requests_per_unit: 9}
  - key: all
    value: a*
    share_threshold: true
    rate_limit: {unit: day, requests_per_unit: 9}
  - key: outer
    value: x
    rate_limit: {name: outer, unit: day, requests_per_unit: 9}
    descriptors:
      - key: inner
        rate_limit: {name: inner, unit: day, requests_per_unit: 9}
  - key: empty
    descriptors:
      - key: inner
        rate_limit: {name: inner, unit: day, requests_per_unit: 9}
  - key: limit
    rate_limit: {unit: day, requests_per_unit: 3}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: quota
    quota_mode: true
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: quota-too
    quota_mode: true
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: closed
    rate_limit: {unit: day, requests_per_unit: 0}
  - key: free
    rate_limit: {unlimited: true}
  - key: old
    rate_limit: {name: old, unit: day, requests_per_unit: 9}
  - key: new
    rate_limit: {name: new, unit: day, requests_per_unit: 9, replaces: [{name: old}]}
  - key: second
    rate_limit: {unit: second, requests_per_unit: 1000}
  - key: minute
    rate_limit: {unit: minute, requests_per_unit: 1000}
  - key: hour
    rate_limit: {unit: HOUR, requests_per_unit: 9}
  - key: week
    rate_limit: {unit: Week, requests_per_unit: 9}
  - key: month
    rate_limit: {unit: month, requests_per_unit: 9}
  - key: year
    rate_limit: {unit: year, requests_per_unit: 9}
`}

// newerDomains are domains that the reference is too old for.
const newerDomains = `
domain: newer
descriptors:
  - key: plan
    metadata: {plan: {name: free, tier: 1}}
    rate_limit: {unit: day, requests_per_unit: 9}
  - key: region
    metadata: {region: north, plan: {tier: 2, seats: 3}}
    rate_limit: {unit: day, requests_per_unit: 9}
  - key: spent
    metadata: {spent: true}
    rate_limit: {unit: day, requests_per_unit: 0}
  - key: path
    value: /users/*/posts
    rate_limit: {unit: day, requests_per_unit: 9}
`

// contract is the contract with Envoy: requests, in the order of the table, and their
// complete responses. A correct time until a reset is shown as one second.
var contract = []struct {
	sentence string
	request  string
	answer   string // or the beginning of an error
	theirs   bool   // the reference answers so, too
}{
	{
		"the key and the value are matched first", `exact=one`,
		`overall_code:OK statuses:{code:OK current_limit:{name:"exact" requests_per_unit:9 unit:DAY} limit_remaining:8 duration_until_reset:{seconds:1}}`, true,
	},
	{
		"then a pattern of values", `exact=other`,
		`overall_code:OK statuses:{code:OK current_limit:{name:"wildcard" requests_per_unit:9 unit:DAY} limit_remaining:8 duration_until_reset:{seconds:1}}`, true,
	},
	{
		"then the key alone", `exact=two`,
		`overall_code:OK statuses:{code:OK current_limit:{name:"bare" requests_per_unit:9 unit:DAY} limit_remaining:8 duration_until_reset:{seconds:1}}`, true,
	},
	{
		"each value has a counter of its own", `exact=three`,
		`overall_code:OK statuses:{code:OK current_limit:{name:"bare" requests_per_unit:9 unit:DAY} limit_remaining:8 duration_until_reset:{seconds:1}}`, true,
	},
	{
		"of patterns, the first that is declared", `order=abc`,
		`overall_code:OK statuses:{code:OK current_limit:{name:"first" requests_per_unit:9 unit:DAY} limit_remaining:8 duration_until_reset:{seconds:1}}`, true,
	},
	{
		"what fits a pattern is counted each by itself", `each=a1 | each=a2`,
		`overall_code:OK
		statuses:{code:OK current_limit:{requests_per_unit:9 unit:DAY} limit_remaining:8 duration_until_reset:{seconds:1}}
		statuses:{code:OK current_limit:{requests_per_unit:9 unit:DAY} limit_remaining:8 duration_until_reset:{seconds:1}}`, true,
	},
	{
		"or together, with share_threshold", `all=a1 | all=a2`,
		`overall_code:OK
		statuses:{code:OK current_limit:{requests_per_unit:9 unit:DAY} limit_remaining:8 duration_until_reset:{seconds:1}}
		statuses:{code:OK current_limit:{requests_per_unit:9 unit:DAY} limit_remaining:7 duration_until_reset:{seconds:1}}`, true,
	},
	{
		"a limit is that of the last entry", `outer=x,inner=y`,
		`overall_code:OK statuses:{code:OK current_limit:{name:"inner" requests_per_unit:9 unit:DAY} limit_remaining:8 duration_until_reset:{seconds:1}}`, true,
	},
	{
		"a descriptor that ends before has the limit where it ends", `outer=x`,
		`overall_code:OK statuses:{code:OK current_limit:{name:"outer" requests_per_unit:9 unit:DAY} limit_remaining:8 duration_until_reset:{seconds:1}}`, true,
	},
	{"and none if there is none", `empty=x`, `overall_code:OK statuses:{code:OK}`, true},
	{"one that goes on has none", `outer=x,inner=y,more=z`, `overall_code:OK statuses:{code:OK}`, true},
	{"what matches nothing passes, and is told no limit", `unknown=x`, `overall_code:OK statuses:{code:OK}`, true},
	{"so does what is of an unknown domain", `nowhere: limit=x | limit=y`, `overall_code:OK statuses:{code:OK} statuses:{code:OK}`, true},
	{
		"a limit that comes with the request takes the place of the configured one", `limit=brought limit=7/HOUR`,
		`overall_code:OK statuses:{code:OK current_limit:{requests_per_unit:7 unit:HOUR} limit_remaining:6 duration_until_reset:{seconds:1}}`, true,
	},
	{
		"and is never in shadow_mode", `shadow=brought hits=3 limit=2/DAY`,
		`overall_code:OVER_LIMIT statuses:{code:OVER_LIMIT current_limit:{requests_per_unit:2 unit:DAY} duration_until_reset:{seconds:1}}`, true,
	},
	{
		"also in an unknown domain", `nowhere: limit=x limit=7/DAY`,
		`overall_code:OK statuses:{code:OK current_limit:{requests_per_unit:7 unit:DAY} limit_remaining:6 duration_until_reset:{seconds:1}}`, false,
	},
	{
		"a limit that another replaces is dropped where both match", `old=x | new=x`,
		`overall_code:OK statuses:{code:OK} statuses:{code:OK current_limit:{name:"new" requests_per_unit:9 unit:DAY} limit_remaining:8 duration_until_reset:{seconds:1}}`, true,
	},
	{
		"and counts where only it does", `old=x`,
		`overall_code:OK statuses:{code:OK current_limit:{name:"old" requests_per_unit:9 unit:DAY} limit_remaining:8 duration_until_reset:{seconds:1}}`, true,
	},

	{
		"a request without hits_addend has one hit", `limit=hits`,
		`overall_code:OK statuses:{code:OK current_limit:{requests_per_unit:3 unit:DAY} limit_remaining:2 duration_until_reset:{seconds:1}}`, true,
	},
	{
		"or as many as it says, for all its descriptors", `contract hits=2: limit=hits | limit=other`,
		`overall_code:OK
		statuses:{code:OK current_limit:{requests_per_unit:3 unit:DAY} duration_until_reset:{seconds:1}}
		statuses:{code:OK current_limit:{requests_per_unit:3 unit:DAY} limit_remaining:1 duration_until_reset:{seconds:1}}`, true,
	},
	{
		"but for those that have their own", `contract hits=2: limit=own | limit=own-too hits=3`,
		`overall_code:OK
		statuses:{code:OK current_limit:{requests_per_unit:3 unit:DAY} limit_remaining:1 duration_until_reset:{seconds:1}}
		statuses:{code:OK current_limit:{requests_per_unit:3 unit:DAY} duration_until_reset:{seconds:1}}`, true,
	},
	{
		"which may be 0: that asks, and counts nothing", `contract hits=2: limit=own hits=0`,
		`overall_code:OK statuses:{code:OK current_limit:{requests_per_unit:3 unit:DAY} limit_remaining:1 duration_until_reset:{seconds:1}}`, true,
	},
	{
		"and again the same", `limit=own hits=0`,
		`overall_code:OK statuses:{code:OK current_limit:{requests_per_unit:3 unit:DAY} limit_remaining:1 duration_until_reset:{seconds:1}}`, true,
	},
	{
		"it is over if nothing is left", `limit=own-too hits=0`,
		`overall_code:OVER_LIMIT statuses:{code:OVER_LIMIT current_limit:{requests_per_unit:3 unit:DAY} duration_until_reset:{seconds:1}}`, false,
	},
	{"a request without a domain is an error", ` : limit=x`, `InvalidArgument: domain: must not be empty`, false},
	{"one without descriptors as well", `contract:`, `InvalidArgument: descriptors: want at least one`, false},

	{
		"statuses are those of the descriptors, in their order", `unknown=x | limit=order | free=x | hour=x`,
		`overall_code:OK
		statuses:{code:OK}
		statuses:{code:OK current_limit:{requests_per_unit:3 unit:DAY} limit_remaining:2 duration_until_reset:{seconds:1}}
		statuses:{code:OK limit_remaining:4294967295}
		statuses:{code:OK current_limit:{requests_per_unit:9 unit:HOUR} limit_remaining:8 duration_until_reset:{seconds:1}}`, true,
	},
	{
		"of what is over nothing remains", `limit=much hits=5`,
		`overall_code:OVER_LIMIT statuses:{code:OVER_LIMIT current_limit:{requests_per_unit:3 unit:DAY} duration_until_reset:{seconds:1}}`, true,
	},
	{
		"a limit of 0 lets nothing pass", `closed=x`,
		`overall_code:OVER_LIMIT statuses:{code:OVER_LIMIT current_limit:{unit:DAY} duration_until_reset:{seconds:1}}`, true,
	},
	{
		"there are seven units", `second=x | minute=x | hour=y | limit=unit | week=x | month=x | year=x`,
		`overall_code:OK
		statuses:{code:OK current_limit:{requests_per_unit:1000 unit:SECOND} limit_remaining:999 duration_until_reset:{seconds:1}}
		statuses:{code:OK current_limit:{requests_per_unit:1000 unit:MINUTE} limit_remaining:999 duration_until_reset:{seconds:1}}
		statuses:{code:OK current_limit:{requests_per_unit:9 unit:HOUR} limit_remaining:8 duration_until_reset:{seconds:1}}
		statuses:{code:OK current_limit:{requests_per_unit:3 unit:DAY} limit_remaining:2 duration_until_reset:{seconds:1}}
		statuses:{code:OK current_limit:{requests_per_unit:9 unit:WEEK} limit_remaining:8 duration_until_reset:{seconds:1}}
		statuses:{code:OK current_limit:{requests_per_unit:9 unit:MONTH} limit_remaining:8 duration_until_reset:{seconds:1}}
		statuses:{code:OK current_limit:{requests_per_unit:9 unit:YEAR} limit_remaining:8 duration_until_reset:{seconds:1}}`, true,
	},

	{
		"a request is over if one of its descriptors is", `limit=overall | closed=x`,
		`overall_code:OVER_LIMIT
		statuses:{code:OK current_limit:{requests_per_unit:3 unit:DAY} limit_remaining:2 duration_until_reset:{seconds:1}}
		statuses:{code:OVER_LIMIT current_limit:{unit:DAY} duration_until_reset:{seconds:1}}`, true,
	},
	{
		"shadow_mode has its own code be OK, and no other", `shadow=x hits=2 | limit=shadowed`,
		`overall_code:OK
		statuses:{code:OK current_limit:{requests_per_unit:1 unit:DAY} duration_until_reset:{seconds:1}}
		statuses:{code:OK current_limit:{requests_per_unit:3 unit:DAY} limit_remaining:2 duration_until_reset:{seconds:1}}`, true,
	},
	{
		"also beside one that is over", `shadow=x | closed=x`,
		`overall_code:OVER_LIMIT
		statuses:{code:OK current_limit:{requests_per_unit:1 unit:DAY} duration_until_reset:{seconds:1}}
		statuses:{code:OVER_LIMIT current_limit:{unit:DAY} duration_until_reset:{seconds:1}}`, true,
	},
	{
		"a limit in quota_mode does not refuse while another is not used up", `quota=x hits=2 | quota-too=x`,
		`overall_code:OK
		statuses:{code:OVER_LIMIT current_limit:{requests_per_unit:1 unit:DAY} duration_until_reset:{seconds:1}}
		statuses:{code:OK current_limit:{requests_per_unit:1 unit:DAY} duration_until_reset:{seconds:1}}`, false,
	},
	{
		"they do when all of them are", `quota=x | quota-too=x`,
		`overall_code:OVER_LIMIT
		statuses:{code:OVER_LIMIT current_limit:{requests_per_unit:1 unit:DAY} duration_until_reset:{seconds:1}}
		statuses:{code:OVER_LIMIT current_limit:{requests_per_unit:1 unit:DAY} duration_until_reset:{seconds:1}}`, false,
	},
	{
		"whatever other limits say", `quota=y | closed=x`,
		`overall_code:OVER_LIMIT
		statuses:{code:OK current_limit:{requests_per_unit:1 unit:DAY} duration_until_reset:{seconds:1}}
		statuses:{code:OVER_LIMIT current_limit:{unit:DAY} duration_until_reset:{seconds:1}}`, true,
	},

	{
		"headers tell of the limit that has least left", `told: limit=x | hour=told`,
		`overall_code:OK
		statuses:{code:OK current_limit:{requests_per_unit:3 unit:DAY} limit_remaining:2 duration_until_reset:{seconds:1}}
		statuses:{code:OK current_limit:{requests_per_unit:9 unit:HOUR} limit_remaining:8 duration_until_reset:{seconds:1}}
		response_headers_to_add:{key:"RateLimit-Limit" value:"3"}
		response_headers_to_add:{key:"RateLimit-Remaining" value:"2"}
		response_headers_to_add:{key:"RateLimit-Reset" value:"soon"}
		dynamic_metadata:{
			fields:{key:"domain" value:{string_value:"contract"}}
			fields:{key:"descriptors" value:{list_value:{
				values:{struct_value:{fields:{key:"entries" value:{list_value:{values:{string_value:"limit=x"}}}}}}
				values:{struct_value:{fields:{key:"entries" value:{list_value:{values:{string_value:"hour=told"}}}}}}
			}}}
			fields:{key:"quotaModeEnabled" value:{bool_value:false}}
		}`, true,
	},
	{
		"or of the last that refuses; metadata tells what was asked", `told hits=4: shadow=x | limit=y,more=z hits=0 limit=5/HOUR | closed=x | limit=z`,
		`overall_code:OVER_LIMIT
		statuses:{code:OK current_limit:{requests_per_unit:1 unit:DAY} duration_until_reset:{seconds:1}}
		statuses:{code:OK current_limit:{requests_per_unit:5 unit:HOUR} limit_remaining:5 duration_until_reset:{seconds:1}}
		statuses:{code:OVER_LIMIT current_limit:{unit:DAY} duration_until_reset:{seconds:1}}
		statuses:{code:OVER_LIMIT current_limit:{requests_per_unit:3 unit:DAY} duration_until_reset:{seconds:1}}
		response_headers_to_add:{key:"RateLimit-Limit" value:"3"}
		response_headers_to_add:{key:"RateLimit-Remaining" value:"0"}
		response_headers_to_add:{key:"RateLimit-Reset" value:"soon"}
		dynamic_metadata:{
			fields:{key:"domain" value:{string_value:"contract"}}
			fields:{key:"hitsAddend" value:{number_value:4}}
			fields:{key:"descriptors" value:{list_value:{
				values:{struct_value:{fields:{key:"entries" value:{list_value:{values:{string_value:"shadow=x"}}}}}}
				values:{struct_value:{
					fields:{key:"entries" value:{list_value:{values:{string_value:"limit=y"} values:{string_value:"more=z"}}}}
					fields:{key:"hitsAddend" value:{number_value:0}}
					fields:{key:"limit" value:{string_value:"requests_per_unit:5 unit:HOUR"}}
				}}
				values:{struct_value:{fields:{key:"entries" value:{list_value:{values:{string_value:"closed=x"}}}}}}
				values:{struct_value:{fields:{key:"entries" value:{list_value:{values:{string_value:"limit=z"}}}}}}
			}}}
			fields:{key:"quotaModeEnabled" value:{bool_value:false}}
		}`, true,
	},
	{
		"metadata of limits that pass is merged, and the first to say something has the word", `told-newer: plan=x | region=x | spent=x`,
		`overall_code:OVER_LIMIT
		statuses:{code:OK current_limit:{requests_per_unit:9 unit:DAY} limit_remaining:8 duration_until_reset:{seconds:1}}
		statuses:{code:OK current_limit:{requests_per_unit:9 unit:DAY} limit_remaining:8 duration_until_reset:{seconds:1}}
		statuses:{code:OVER_LIMIT current_limit:{unit:DAY} duration_until_reset:{seconds:1}}
		response_headers_to_add:{key:"RateLimit-Limit" value:"0"}
		response_headers_to_add:{key:"RateLimit-Remaining" value:"0"}
		response_headers_to_add:{key:"RateLimit-Reset" value:"soon"}
		dynamic_metadata:{
			fields:{key:"domain" value:{string_value:"newer"}}
			fields:{key:"descriptors" value:{list_value:{
				values:{struct_value:{fields:{key:"entries" value:{list_value:{values:{string_value:"plan=x"}}}}}}
				values:{struct_value:{fields:{key:"entries" value:{list_value:{values:{string_value:"region=x"}}}}}}
				values:{struct_value:{fields:{key:"entries" value:{list_value:{values:{string_value:"spent=x"}}}}}}
			}}}
			fields:{key:"metadata" value:{struct_value:{
				fields:{key:"plan" value:{struct_value:{
					fields:{key:"name" value:{string_value:"free"}}
					fields:{key:"tier" value:{number_value:1}}
					fields:{key:"seats" value:{number_value:3}}
				}}}
				fields:{key:"region" value:{string_value:"north"}}
			}}}
			fields:{key:"quotaModeEnabled" value:{bool_value:false}}
		}`, false,
	},
	{
		"a * may stand anywhere in a value", `told-newer: path=/users/7/posts`,
		`overall_code:OK
		statuses:{code:OK current_limit:{requests_per_unit:9 unit:DAY} limit_remaining:8 duration_until_reset:{seconds:1}}
		response_headers_to_add:{key:"RateLimit-Limit" value:"9"}
		response_headers_to_add:{key:"RateLimit-Remaining" value:"8"}
		response_headers_to_add:{key:"RateLimit-Reset" value:"soon"}
		dynamic_metadata:{
			fields:{key:"domain" value:{string_value:"newer"}}
			fields:{key:"descriptors" value:{list_value:{
				values:{struct_value:{fields:{key:"entries" value:{list_value:{values:{string_value:"path=/users/7/posts"}}}}}}
			}}}
			fields:{key:"quotaModeEnabled" value:{bool_value:false}}
		}`, false,
	},

	{
		"a service in shadow_mode refuses nothing, and tells what is over", `shadowed: closed=x | limit=x`,
		`overall_code:OK
		statuses:{code:OVER_LIMIT current_limit:{unit:DAY} duration_until_reset:{seconds:1}}
		statuses:{code:OK current_limit:{requests_per_unit:3 unit:DAY} limit_remaining:2 duration_until_reset:{seconds:1}}`, true,
	},
	{
		"a service in quota_mode refuses only if all limits are used up", `quotas: closed=x | limit=x`,
		`overall_code:OK
		statuses:{code:OVER_LIMIT current_limit:{unit:DAY} duration_until_reset:{seconds:1}}
		statuses:{code:OK current_limit:{requests_per_unit:3 unit:DAY} limit_remaining:2 duration_until_reset:{seconds:1}}`, false,
	},
	{
		"which they are here", `quotas: closed=x | limit=x hits=3`,
		`overall_code:OVER_LIMIT
		statuses:{code:OVER_LIMIT current_limit:{unit:DAY} duration_until_reset:{seconds:1}}
		statuses:{code:OVER_LIMIT current_limit:{requests_per_unit:3 unit:DAY} duration_until_reset:{seconds:1}}`, false,
	},
}

// settings are the settings of services that rows name instead of a domain.
var settings = map[string]struct{ ours, theirs []string }{
	"contract": {},
	"told": {
		[]string{"STINT_ENVOY_RESPONSE_HEADERS=true", "STINT_ENVOY_DYNAMIC_METADATA=true"},
		[]string{"LIMIT_RESPONSE_HEADERS_ENABLED=true", "RESPONSE_DYNAMIC_METADATA=true"},
	},
	"shadowed": {[]string{"STINT_ENVOY_SHADOW_MODE=true"}, []string{"SHADOW_MODE=true"}},
	"quotas":   {[]string{"STINT_ENVOY_QUOTA_MODE=true"}, []string{"QUOTA_MODE=true"}},
}

func TestEnvoyContract(t *testing.T) {
	t.Parallel()
	both := maps.Clone(contractDomains)
	dir := writeDomains(t, both)
	both["newer"] = newerDomains
	ours := writeDomains(t, both)
	peers, references := map[string]*peer{}, map[string]*peer{}
	for name, s := range settings {
		peers[name] = serveEnvoy(t, ours, s.ours...).peer
		references[name] = startReference(t, dir, s.theirs...)
	}
	for _, row := range contract {
		q := short(t, row.request)
		setting, newer := strings.CutSuffix(q.GetDomain(), "-newer")
		switch {
		case peers[setting] == nil:
			setting = "contract"
		case newer:
			q.Domain = "newer"
		default:
			q.Domain = "contract"
		}
		if wrong := peers[setting].answers(t, q, row.answer); wrong != "" {
			t.Errorf("%s: %s", row.sentence, wrong)
		}
		switch wrong := references[setting].answers(t, q, row.answer); {
		case isNewer(): // the table is of the other
		case row.theirs && wrong != "":
			t.Errorf("%s: %s", row.sentence, wrong)
		case !row.theirs && wrong == "":
			t.Errorf("%s: the reference says the same, and the table that it does not", row.sentence)
		}
	}
}

// answers returns the differences between the response of a service and the contract.
func (p *peer) answers(t *testing.T, q *rlsv3.RateLimitRequest, text string) (wrong string) {
	t.Helper()
	during := span{from: time.Now().Unix()}
	got, err := p.try(t, q)
	during.to = time.Now().Unix()
	if err != nil {
		s := status.Convert(err)
		if said := s.Code().String() + ": " + s.Message(); !strings.HasPrefix(said, text) {
			return fmt.Sprintf("%s: got %s, want %s", p.name, said, text)
		}
		return ""
	}
	want := new(rlsv3.RateLimitResponse)
	if err := prototext.Unmarshal([]byte(text), want); err != nil {
		return fmt.Sprintf("%s: got %v, want %s: %v", p.name, got, text, err)
	}
	if settle(got, during); !proto.Equal(got, want) {
		return fmt.Sprintf("%s answers\n%v\nwant\n%v\nto\n%v", p.name, got, want, q)
	}
	return ""
}
