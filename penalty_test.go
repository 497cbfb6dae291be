package stint_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
)

func TestParsePenalty(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"3/1h cooldown=1m",
		"1/1us cooldown=1us multipliers=1",
		"3/1h cooldown=1m multipliers=1,2,4,8",
		"985/1w cooldown=90s multipliers=1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,100",
	} {
		p, err := stint.ParsePenalty(text)
		if err != nil || p.String() != text {
			t.Errorf("%q: %v, %v; want the same back", text, p, err)
		}
	}
	for text, want := range map[string]string{
		"":                                    "want VIOLATIONS/WINDOW and cooldown=",
		"3/1h":                                "want VIOLATIONS/WINDOW and cooldown=",
		"0/1h cooldown=1m":                    `threshold "0": want a whole number from 1 to`,
		"1001/1h cooldown=1m":                 `threshold "1001": want a whole number from 1 to 1000`,
		"1000/1h cooldown=1m multipliers=1,2": `threshold "1000": want a whole number from 1 to 999`,
		"3 cooldown=1m":                       `within "": want a length`,
		"3/month cooldown=1m":                 `within "month": want a length`,
		"3/11000d cooldown=1m":                "within",
		"3/1h cooldown=never":                 `cooldown "never": want a length`,
		"3/1h cooldown=1m cooldown=1m":        "want VIOLATIONS/WINDOW",
		"3/1h cooldown=1m multipliers=":       `multipliers "": want a whole number`,
		"3/1h cooldown=1m multipliers=1,0":    `multipliers "0": want a whole number`,
		"3/1h cooldown=1d multipliers=100000": `multipliers "100000": want 1 or more, and no ban longer than 10 years`,
		"3/1h cooldown=1m multipliers=1,,2":   `multipliers "": want`,
		"3/1h cooldown=1m steps=2":            "want VIOLATIONS/WINDOW",
		"3/1h multipliers=2 multipliers=2":    "want VIOLATIONS/WINDOW",
		"3/1h multipliers=2 nothing":          "want VIOLATIONS/WINDOW",
		"3/1h cooldown=1m multipliers=" + strings.Repeat("1,", 16) + "1": "at most 16",
	} {
		_, err := stint.ParsePenalty(text)
		if invalid := new(stint.InvalidError); !errors.As(err, &invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want an InvalidError that says %q", text, err, want)
		}
	}
}

// A ban ends when it says, to the microsecond, and what is kept is bounded.
func TestPenaltyIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := &stint.Penalty{
			Threshold:   rapid.Int64Range(1, 5).Draw(t, "threshold"),
			Within:      time.Duration(rapid.Int64Range(1, 1e6).Draw(t, "within")) * time.Microsecond,
			Cooldown:    time.Duration(rapid.Int64Range(1, 1e6).Draw(t, "cooldown")) * time.Microsecond,
			Multipliers: rapid.SliceOfN(rapid.Int64Range(1, 9), 0, 4).Draw(t, "multipliers"),
		}
		var s stint.State
		now := time.Unix(1e9, 0)
		for range 50 {
			now = now.Add(time.Duration(rapid.Int64Range(0, 1e6).Draw(t, "pause")) * time.Microsecond)
			_, before := p.Take(s, now, false)
			next, d := p.Take(s, now, true)
			switch {
			case !before.Allowed && d != before:
				t.Fatalf("a violation during a ban changed %+v to %+v", before, d)
			case before.Allowed && next.Used < 1:
				t.Fatalf("no violation in %+v", next)
			case len(next.Log) >= int(p.Threshold)+max(len(p.Multipliers), 1):
				t.Fatalf("%d violations kept by %v", len(next.Log), p)
			}
			s = next
			if d.Allowed {
				continue
			}
			if _, d := p.Take(s, now.Add(d.RetryAfter-time.Microsecond), false); d.Allowed {
				t.Fatalf("the ban of %v ends too early", p)
			}
			if _, d := p.Take(s, now.Add(d.RetryAfter), false); !d.Allowed {
				t.Fatalf("the ban of %v ends too late", p)
			}
			if _, d := p.Take(s, now.Add(d.ResetAfter), false); d.Remaining != p.Threshold {
				t.Fatalf("%v: %+v after what it said it takes", p, d)
			}
		}
	})
}

func FuzzParsePenalty(f *testing.F) {
	f.Add("3/1h cooldown=1m multipliers=1,2,4,8")
	f.Add("1/1us cooldown=99999999999999w")
	f.Add("3/1h cooldown=1m multipliers=-1,\xff")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := stint.ParsePenalty(text)
		if err != nil {
			return
		}
		if back, err := stint.ParsePenalty(p.String()); err != nil || back.String() != p.String() {
			t.Fatalf("%q is %q, which is %v, %v", text, p, back, err)
		}
	})
}

// TestRefund gives back what a take has charged, and neither peeks nor violations.
func TestRefund(t *testing.T) {
	t.Parallel()
	p := &stint.Penalty{Threshold: 1, Within: time.Hour, Cooldown: time.Minute}
	key := stint.Key{Subject: "alice"}
	asks := []stint.Ask{{Key: key, Limit: stint.PerHour(5), Cost: 3}, {Key: key, Limit: stint.PerDay(5)}, {Key: key, Penalty: p, Cost: 1}}
	ds := []stint.Decision{{Allowed: true, At: 7, Cost: 3}, {Allowed: true}, {Allowed: true, Cost: 1}}
	got := stint.Refund(asks, ds)
	if len(got) != 1 || got[0].Cost != -3 || *got[0].Charge != ds[0].Charge() || got[0].Limit != stint.PerHour(5) || asks[0].Cost != 3 {
		t.Errorf("%v of %v", got, asks)
	}
	if got := stint.Refund(nil, nil); got != nil {
		t.Error(got)
	}
}
