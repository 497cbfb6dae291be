package ruletest_test

import (
	"testing"

	"github.com/stintdev/stint/internal/control/ruletest"
	"github.com/stintdev/stint/rule"
)

// many is a test of 100,000 requests, under rules of which three apply to each.
const many = `
test many requests
at 0s GET /search user=alice ip=192.0.2.1 x50000 every 1ms -> allow 52 deny 49948
at 0s GET /search user=bob   ip=192.0.2.2 header X-App=mobile x50000 every 1ms -> allow 52 deny 49948
`

const manyRules = `
[[rules]]
name     = "search"
match    = { paths = ["/search"] }
count_by = ["user"]
limits   = [ { name = "search", limit = "1/1s token_bucket burst=3" } ]
[[rules]]
name     = "address"
count_by = ["ip"]
limits   = [ { name = "minute", limit = "600000/1m" } ]
[[rules]]
name   = "all"
limits = [ { name = "all", limit = "1000000/1m fixed_window" } ]
`

func newMany(t testing.TB) (*ruletest.Runner, *ruletest.File) {
	t.Helper()
	f, err := ruletest.Parse("many.ruletest", []byte(many))
	if err != nil {
		t.Fatal(err)
	}
	rules, err := rule.ParseTOML("rules.toml", []byte(manyRules))
	if err != nil {
		t.Fatal(err)
	}
	r, err := ruletest.New(ruletest.Options{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	return r, f
}

func BenchmarkMany(b *testing.B) {
	r, f := newMany(b)
	b.ReportAllocs()
	for b.Loop() {
		if result, err := r.Run(b.Context(), f, nil); err != nil || !result.Passed() {
			b.Fatal(result, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100_000, "ns/request")
}
