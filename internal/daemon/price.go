package daemon

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/internal/kit/strict"
)

// Price is what a language model costs, for rules with the meter llm.cost.
type Price struct {
	Model        string `json:"model"` // its name, or the beginning of it and *
	Input        Amount `json:"input"`
	Output       Amount `json:"output"`
	Cached       Amount `json:"cached,omitempty"`        // input that was read from a cache; default: as input
	CacheWritten Amount `json:"cache_written,omitempty"` // input that was written to it; default: as input
}

// Amount is an amount of money, in millionths of a currency's unit. It is written in units, with up to six decimals.
type Amount int64

const maxAmount = 1_000_000 // units

// String returns the amount in units.
func (a Amount) String() string {
	text := fmt.Sprintf("%d.%06d", int64(a)/1e6, int64(a)%1e6)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// MarshalText implements [encoding.TextMarshaler].
func (a Amount) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (a *Amount) UnmarshalText(text []byte) error {
	units, decimals, _ := strings.Cut(string(text), ".")
	n, err := strconv.ParseUint(units+(decimals + "000000")[:6], 10, 63)
	if err != nil || units == "" || len(decimals) > 6 || n > maxAmount*1e6 {
		return fmt.Errorf("%.64q is not a price, want one such as \"2.50\": units of a currency for a million tokens, up to %d, with up to six decimals", text, maxAmount)
	}
	*a = Amount(n)
	return nil
}

// UnmarshalStrict implements [strict.Unmarshaler]: an amount is a string or a number.
func (a *Amount) UnmarshalStrict(found strict.Kind, decode func(into any)) error {
	var text string
	switch found {
	case strict.String:
		decode(&text)
	case strict.Integer, strict.Float:
		var n float64
		decode(&n)
		text = strconv.FormatFloat(n, 'f', -1, 64)
	default:
		return errors.New("found " + found.String() + `, want a price such as "2.50"`)
	}
	return a.UnmarshalText([]byte(text))
}

// prices returns the prices of the gateway.
func (c *Config) prices() map[string]httplimit.ModelPrice {
	out := make(map[string]httplimit.ModelPrice, len(c.Prices))
	for _, p := range c.Prices {
		out[p.Model] = httplimit.ModelPrice{Input: int64(p.Input), Output: int64(p.Output), Cached: int64(p.Cached), CacheWritten: int64(p.CacheWritten)}
	}
	return out
}

func (k *checker) checkPrices() {
	seen := map[string]bool{}
	for i, p := range k.config.Prices {
		path := strict.Item("prices", i) + ".model"
		switch star := strings.IndexByte(p.Model, '*'); {
		case p.Model == "" || star >= 0 && star < len(p.Model)-1:
			k.Refuse(path, p.Model, "the name of a model such as gpt-4o, the beginning of names such as gpt-*, or * for all others", "")
		case seen[p.Model]:
			k.Refuse(path, p.Model, "each model only once", "")
		}
		seen[p.Model] = true
	}
}
