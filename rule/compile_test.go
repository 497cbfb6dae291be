package rule_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/stintdev/stint/rule"
)

// TestCompiler compiles files that follow each other, and compares what comes of it with
// what comes of each by itself.
func TestCompiler(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var c rule.Compiler
		tiers := []rule.Tier{{Name: "free"}, {Name: "pro"}}
		f := rule.File{Tiers: tiers}
		for range rapid.IntRange(2, 8).Draw(t, "files") {
			f.Rules = slices.Clone(f.Rules)
			at := rapid.IntRange(0, len(f.Rules)).Draw(t, "at")
			switch what := rapid.IntRange(0, 9).Draw(t, "what"); {
			case what == 0 && at < len(f.Rules):
				f.Rules = slices.Delete(f.Rules, at, at+1)
			case what == 1: // what rules that are the same say depends on it
				f.Tiers = append(slices.Clone(tiers), rule.Tier{Name: "team", Limits: map[string]string{"n": rapid.SampledFrom([]string{"5/1s", "90/1s"}).Draw(t, "value")}})
			case what == 2:
				f.Tiers = tiers
			case what == 3 && at < len(f.Rules):
				r := f.Rules[at]
				r.Cost.Units = rapid.Int64Range(0, 60).Draw(t, "units")
				f.Rules[at] = r
			default:
				name := fmt.Sprintf("r%d", rapid.IntRange(0, 5).Draw(t, "name")) // there may be one
				f.Rules = slices.Insert(f.Rules, at, drawRule(t, name))
			}
			got, gotErr := c.Compile(f)
			want, wantErr := rule.Compile(f)
			if fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
				t.Fatalf("%v\nwant\n%v", gotErr, wantErr)
			}
			if wantErr == nil && !reflect.DeepEqual(got.Rules(), want.Rules()) {
				t.Fatalf("other rules of %+v", f)
			}
		}
	})
}

// TestCompilerForgets has more wrong rules than problems are told: those of which nothing was
// said are not sound for it.
func TestCompilerForgets(t *testing.T) {
	t.Parallel()
	var c rule.Compiler
	var f rule.File
	for i := range 1005 {
		f.Rules = append(f.Rules, rule.Rule{Name: fmt.Sprintf("r%d", i), Limits: []rule.Limit{{Name: "l", Limit: "nonsense"}}})
	}
	if n := len(c.Check(f)); n != 1000 {
		t.Fatalf("%d problems", n)
	}
	if s, err := c.Compile(rule.File{Rules: f.Rules[1004:]}); err == nil {
		t.Errorf("%d wrong rules were compiled", s.Len())
	}
}

// TestEqual changes one thing of a rule after the other: none may be missed.
func TestEqual(t *testing.T) {
	t.Parallel()
	full := func() (*rule.Rule, *rule.Tier) {
		enabled := true
		return &rule.Rule{
			Name: "a", CountBy: []rule.Dimension{"user"}, Limits: []rule.Limit{{Name: "l", Limit: "1/1s", Algorithm: "x", Burst: 1}}, Cost: rule.Cost{Units: 1, Header: "H", Max: 2},
			Match:  rule.Match{Paths: []string{"/"}, Methods: []string{"GET"}, Tiers: []string{"t"}, IPRanges: []string{"::1"}, Headers: map[string]string{"A": "1"}},
			Action: rule.Reject, MaxDelay: 1, Priority: 1, Group: "g", Penalty: &rule.Penalty{Threshold: 1, Within: 1, Cooldown: 1, Multipliers: []int64{1}},
			OnStoreFailure: rule.Open, Response: rule.Response{Status: 429, Message: "m"}, Enabled: &enabled,
		}, &rule.Tier{Name: "t", DisplayName: "T", Price: "1", Limits: map[string]string{"l": "1/1s"}}
	}
	var change func(v reflect.Value, path string, check func(path string))
	change = func(v reflect.Value, path string, check func(path string)) {
		before := reflect.New(v.Type()).Elem()
		before.Set(v)
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				change(v.Field(i), path+"."+v.Type().Field(i).Name, check)
			}
			return
		case reflect.Pointer:
			change(v.Elem(), path, check)
			if v.Type().Elem().Kind() == reflect.Bool {
				return // none is the same as true
			}
			v.SetZero()
		case reflect.Slice:
			change(v.Index(0), path, check)
			v.SetLen(0)
		case reflect.Map:
			v.Set(reflect.ValueOf(map[string]string{"other": "value"}))
		case reflect.String:
			v.SetString(v.String() + "x")
		case reflect.Bool:
			v.SetBool(!v.Bool())
		default:
			v.SetInt(v.Int() + 1)
		}
		check(path)
		v.Set(before)
	}
	one, tier := full()
	other, otherTier := full()
	if !one.Equal(other) || !tier.Equal(*otherTier) {
		t.Fatal("they are the same")
	}
	changes := 0
	change(reflect.ValueOf(one).Elem(), "rule", func(path string) {
		if changes++; one.Equal(other) || other.Equal(one) {
			t.Errorf("%s: it has changed", path)
		}
	})
	change(reflect.ValueOf(tier).Elem(), "tier", func(path string) {
		if changes++; tier.Equal(*otherTier) || otherTier.Equal(*tier) {
			t.Errorf("%s: it has changed", path)
		}
	})
	if changes < 30 || !one.Equal(other) {
		t.Errorf("%d changes", changes)
	}
}
