package llm_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/door/llm"
)

func prices(t *testing.T, byModel map[string]llm.Price) *llm.Prices {
	t.Helper()
	p, err := llm.NewPrices(byModel)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestFindPrice(t *testing.T) {
	t.Parallel()
	price := func(n int64) llm.Price { return llm.Price{Input: n} }
	table := map[string]llm.Price{
		"gpt-4o": price(1), "gpt-4o-mini": price(2), "gpt-4o-2024-05-13": price(3),
		"claude-sonnet-4": price(4), "claude-sonnet-4-5": price(5), "llama-*": price(6), "llama-3.1-*": price(7),
		"vendor/special": price(8),
	}
	for model, want := range map[string]int64{
		"gpt-4o": 1, "gpt-4o-mini": 2, "gpt-4o-2024-08-06": 1, "gpt-4o-2024-05-13": 3, "gpt-4o-mini-2024-07-18": 2, "gpt-4o-latest": 1,
		"gpt-4o-0613": 1, "gpt-4o-audio": 0, "gpt-4o-1": 0, "gpt-4": 0, "gpt-4o-2024-08-0x": 0, "GPT-4o": 0,
		"claude-sonnet-4-20250514": 4, "claude-sonnet-4@20250514": 4, "claude-sonnet-4-5-20250929": 5, "claude-sonnet-4-6": 0,
		"llama-2": 6, "llama-3.1-8b": 7, "llama": 0, "openai/gpt-4o": 1, "a/b/gpt-4o-latest": 1, "vendor/special": 8, "special": 0,
		"": 0, "-latest": 0, "/": 0,
	} {
		got, ok := prices(t, table).Find(model)
		if got.Input != want || ok != (want > 0) {
			t.Errorf("%q: got %d, %v, want %d", model, got.Input, ok, want)
		}
	}
	table["*"] = price(9)
	all := prices(t, table)
	for want, models := range map[int64][]string{9: {"unknown", ""}, 1: {"unknown", "gpt-4o"}, 2: {"gpt-4o-mini", "gpt-4o"}} {
		if got, ok := all.Find(models...); !ok || got.Input != want {
			t.Errorf("%q: got %d, want %d", models, got.Input, want)
		}
	}
}

func TestCost(t *testing.T) {
	t.Parallel()
	const most = 1<<53 - 1
	p := llm.Price{Input: 2_500_000, Output: 10_000_000, Cached: 1_250_000, CacheWritten: 3_125_000}
	for name, c := range map[string]struct {
		price llm.Price
		usage llm.Usage
		want  int64
	}{
		"nothing":           {p, llm.Usage{}, 0},
		"a million":         {p, llm.Usage{Input: 1_000_000}, 2_500_000},
		"one token":         {p, llm.Usage{Input: 1}, 3},                        // 2.5
		"rounded once":      {p, llm.Usage{Input: 1, Output: 1, Cached: 1}, 12}, // 1.25 + 10
		"all parts":         {p, llm.Usage{Input: 1000, Cached: 400, CacheWritten: 200, Output: 100}, 400*2.5 + 500 + 625 + 1000},
		"cached as input":   {llm.Price{Input: 4_000_000}, llm.Usage{Input: 10, Cached: 5, CacheWritten: 5}, 40},
		"cached beyond":     {p, llm.Usage{Input: 1, Cached: 4}, 5},
		"a very small cost": {llm.Price{Input: 1}, llm.Usage{Input: 1}, 1},
		"free":              {llm.Price{}, llm.Usage{Input: 5, Output: 5}, 0},
		"enormous":          {llm.Price{Input: most, Output: most, Cached: most, CacheWritten: most}, llm.Usage{Input: most, Output: most, Cached: most, CacheWritten: most}, most},
		"just below":        {llm.Price{Input: 1_000_000}, llm.Usage{Input: most}, most},
	} {
		if got := c.price.Cost(&c.usage); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}

func TestCostOfModel(t *testing.T) {
	t.Parallel()
	table := prices(t, map[string]llm.Price{"a": {Input: 1_000_000}, "b": {Input: 2_000_000}})
	for answered, want := range map[string]int64{"a-20260101": 5, "b": 10, "": 5, "unknown": 5} {
		if got, err := table.Cost(&llm.Usage{Input: 5, Model: answered}, "a"); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", answered, got, err, want)
		}
	}
	if _, err := table.Cost(&llm.Usage{Input: 5, Model: "x"}, "y"); !errors.Is(err, llm.ErrUnknownModel) || !strings.Contains(err.Error(), `"x"`) {
		t.Errorf("got %v", err)
	}
}

func TestPriceErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		price llm.Price
		says  string
	}{
		"":      {llm.Price{}, "want the name of a model"},
		"a*b":   {llm.Price{}, "at the end only"},
		"a":     {llm.Price{Input: -1}, "input is -1"},
		"b":     {llm.Price{Output: 1 << 60}, "output is"},
		"c":     {llm.Price{Cached: -2}, "cached is -2"},
		"other": {llm.Price{CacheWritten: -3}, "cache_written is -3"},
	} {
		if _, err := llm.NewPrices(map[string]llm.Price{name: c.price}); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: got %v, want an error that says %q", name, err, c.says)
		}
	}
}

func TestMeters(t *testing.T) {
	t.Parallel()
	u := llm.Usage{Input: 1, Output: 2, Total: 3}
	for name, want := range map[string]int64{"llm.input_tokens": 1, "llm.output_tokens": 2, "llm.total_tokens": 3, "llm.cost": 0} {
		m, err := llm.ParseMeter(name)
		if err != nil || m.String() != name || u.Tokens(m) != want {
			t.Errorf("%s: got %s, %d, %v", name, m, u.Tokens(m), err)
		}
	}
	if _, err := llm.ParseMeter("llm.tokens"); err == nil || !strings.Contains(err.Error(), `"llm.tokens": want llm.input_tokens`) {
		t.Errorf("got %v", err)
	}
}
