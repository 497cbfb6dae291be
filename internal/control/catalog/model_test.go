package catalog_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
)

func TestTimes(t *testing.T) {
	t.Parallel()
	want := time.Date(2026, time.December, 31, 23, 59, 59, 0, time.UTC)
	for _, text := range []string{
		"2026-12-31T23:59:59Z", "2026-12-31t23:59:59z", "2026-12-31 23:59:59Z", "2026-12-31T23:59:59.000Z", "2027-01-01T05:29:59+05:30", "2026-12-31 18:59:59-05:00",
	} {
		var got catalog.Time
		if err := got.UnmarshalText([]byte(text)); err != nil || !got.Equal(want) {
			t.Errorf("%s: got %v, %v", text, got, err)
		}
		body, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		var again catalog.Time
		if err := json.Unmarshal(body, &again); err != nil || !again.Equal(want) {
			t.Errorf("%s: got %v, %v", body, again, err)
		}
	}
	for _, text := range []string{
		"", "2026-12-31", "23:59:59", "2026-12-31T23:59:59", "2026-02-30T00:00:00Z", "10000-01-01T00:00:00Z", "-001-01-01T00:00:00Z", "now", "1767225599",
		"2026-12-31T23:59:59+24:00", // which can be read, and not be written
		"2026-12-31T23:59:60Z", strings.Repeat("2", 1<<20), "\x00", "\xff",
	} {
		var got catalog.Time
		if err := got.UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), "want a date, a time and a zone") || len(err.Error()) > 500 {
			t.Errorf("%.40q: got %v, %.200v", text, got, err)
		}
	}
	for _, body := range []string{`1`, `null1`, `{}`, `["2026-12-31T23:59:59Z"]`} {
		if err := json.Unmarshal([]byte(body), new(catalog.Time)); err == nil {
			t.Errorf("%s was read", body)
		}
	}
}

func TestOverrides(t *testing.T) {
	t.Parallel()
	until := catalog.Time{Time: time.Date(2026, time.December, 31, 0, 0, 0, 0, time.UTC)}
	for text, want := range map[string]catalog.Override{
		`"200/day"`:             {Limit: "200/day"},
		`{"limit":"unlimited"}`: {Limit: "unlimited"},
		`{"limit":"200/day","until":"2026-12-31T00:00:00Z"}`: {Limit: "200/day", Until: until},
	} {
		var got catalog.Override
		if err := json.Unmarshal([]byte(text), &got); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
		body, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		var again catalog.Override
		if err := json.Unmarshal(body, &again); err != nil || again != want {
			t.Errorf("%s: got %+v, %v", body, again, err)
		}
	}
	for text, says := range map[string]string{
		`5`:                       `found an integer, want a string such as "200/day"`,
		`[]`:                      `want a string such as "200/day"`,
		`{"limt":"1/1s"}`:         `did you mean "limit"?`,
		`{"until":"tomorrow"}`:    `is not a time`,
		`{"limit":1,"until":"x"}`: `limit`,
	} {
		if err := json.Unmarshal([]byte(text), new(catalog.Override)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want an error that says %s", text, err, says)
		}
	}
	var u catalog.User
	if _, problems := strict.JSON("", []byte(`{"id":"u","limits":{"a":5,"b":{"limit":"1/1s","untl":"x"}}}`), &u); len(problems) != 2 ||
		problems[0].Path != "limits.a" || problems[1].Path != "limits.b.untl" {
		t.Errorf("got %v", problems)
	}
}

func TestEntryIDs(t *testing.T) {
	t.Parallel()
	for want, entries := range map[string][]catalog.Entry{
		"ip:10.0.0.1":      {{IP: "10.0.0.1"}, {IP: "10.0.0.1/32"}},
		"ip:2001:db8::/32": {{IP: "2001:db8::/32"}, {IP: "2001:DB8:0::/32"}},
		"ip:2001:db8::1":   {{IP: "2001:db8::1"}, {IP: "2001:db8:0:0:0:0:0:1/128"}},
		"ip:localhost":     {{IP: "localhost"}},
		"user:10.0.0.1/32": {{User: "10.0.0.1/32"}},
		"user:ip:10.0.0.1": {{User: "ip:10.0.0.1"}},
		"tenant:acme":      {{Tenant: "acme", Reason: "x"}},
		"key:abcdefgh":     {{Key: "abcdefgh"}},
		"":                 {{}, {Reason: "x"}},
	} {
		for _, e := range entries {
			if got := e.ID(); got != want {
				t.Errorf("%+v: got %q, want %q", e, got, want)
			}
		}
	}
}
