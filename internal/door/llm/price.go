package llm

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"

	"github.com/stintdev/stint/internal/kit/scan"
)

// Price is what a model costs: millionths of a currency's unit for a million tokens. 2.50
// dollars are 2,500,000.
type Price struct {
	Input, Output int64
	// Cached is the price of input that was read from a cache, and CacheWritten of input that
	// was written to it. Zero: as Input.
	Cached, CacheWritten int64
}

// ErrUnknownModel means that there is no price for a model.
var ErrUnknownModel = errors.New("llm: no price for this model")

// Prices is a table of prices by model. It is safe for concurrent use.
//
// A model is found by its name; or by its name without the version at its end, which is a
// date or latest: gpt-4o-2024-08-06 and claude-x-latest are gpt-4o and claude-x, but
// gpt-4o-mini is not gpt-4o; or by the longest name in the table that ends in * and is the
// beginning of it, where * alone is for all others. If none is found, a provider before the
// name, such as openai/, is left out, and it is looked for again.
type Prices struct {
	exact map[string]Price
	open  map[string]Price // by the beginning of the name
}

// NewPrices returns a table. Names are those of models, or end in *.
func NewPrices(byModel map[string]Price) (*Prices, error) {
	p := &Prices{map[string]Price{}, map[string]Price{}}
	for name, price := range byModel {
		for field, n := range map[string]int64{
			"input": price.Input, "output": price.Output, "cached": price.Cached, "cache_written": price.CacheWritten,
		} {
			if n < 0 || n > scan.MaxNumber {
				return nil, fmt.Errorf("price of %q: %s is %d, want 0 to %d", name, field, n, int64(scan.MaxNumber))
			}
		}
		beginning, open := strings.CutSuffix(name, "*")
		switch {
		case name == "":
			return nil, errors.New(`price of "": want the name of a model, or * for all others`)
		case strings.Contains(beginning, "*"):
			return nil, fmt.Errorf("price of %q: want * at the end only", name)
		case open:
			p.open[beginning] = price
		default:
			p.exact[name] = price
		}
	}
	return p, nil
}

// Find returns the price of the first of these models that is in the table.
func (p *Prices) Find(models ...string) (Price, bool) {
	for _, model := range models {
		for model != "" {
			if price, ok := p.find(model); ok {
				return price, true
			}
			_, model, _ = strings.Cut(model, "/")
		}
	}
	price, ok := p.open[""]
	return price, ok
}

func (p *Prices) find(model string) (Price, bool) {
	if price, ok := p.exact[model]; ok {
		return price, true
	}
	if base := withoutVersion(model); base != "" {
		if price, ok := p.exact[base]; ok {
			return price, true
		}
	}
	for n := len(model); n > 0; n-- {
		if price, ok := p.open[model[:n]]; ok {
			return price, true
		}
	}
	return Price{}, false
}

// withoutVersion removes a version from the end of a model's name: - or @, and then latest,
// or a date as 20241022, 2024-10-22 or 1022. It returns nothing if there is none.
func withoutVersion(model string) string {
	for _, form := range [...]string{"latest", "0000-00-00", "00000000", "0000"} {
		n := len(model) - len(form) - 1
		if n > 0 && (model[n] == '-' || model[n] == '@') && hasForm(model[n+1:], form) {
			return model[:n]
		}
	}
	return ""
}

// hasForm reports whether s is the form with other digits.
func hasForm(s, form string) bool {
	for i := range len(form) {
		if isDigit := s[i] >= '0' && s[i] <= '9'; isDigit != (form[i] == '0') || (!isDigit && s[i] != form[i]) {
			return false
		}
	}
	return true
}

// Cost returns what an answer costs, in millionths of a unit, rounded up. The model is the
// one that has answered or, if that has no price, the one that was asked for. It returns
// [ErrUnknownModel] if neither has one.
func (p *Prices) Cost(u *Usage, asked string) (int64, error) {
	price, ok := p.Find(u.Model, asked)
	if !ok {
		return 0, fmt.Errorf("%w: %q", ErrUnknownModel, u.Model)
	}
	return price.Cost(u), nil
}

// Cost returns what an answer costs at this price, in millionths of a unit, rounded up.
func (p Price) Cost(u *Usage) int64 {
	if p.Cached == 0 {
		p.Cached = p.Input
	}
	if p.CacheWritten == 0 {
		p.CacheWritten = p.Input
	}
	var high, low uint64 // in millionths of millionths
	for _, part := range [...]struct{ tokens, price int64 }{
		{max(u.Input-u.Cached-u.CacheWritten, 0), p.Input},
		{u.Cached, p.Cached},
		{u.CacheWritten, p.CacheWritten},
		{u.Output, p.Output},
	} {
		h, l := bits.Mul64(uint64(part.tokens), uint64(part.price))
		var carry uint64
		low, carry = bits.Add64(low, l, 0)
		high, _ = bits.Add64(high, h, carry)
	}
	const million = 1_000_000
	if high >= million {
		return scan.MaxNumber
	}
	cost, rest := bits.Div64(high, low, million)
	return int64(min(cost+min(rest, 1), scan.MaxNumber))
}
