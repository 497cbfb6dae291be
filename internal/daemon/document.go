package daemon

import (
	"bytes"
	"regexp"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
)

// inDocument matches paths in a document.
var inDocument = regexp.MustCompile(`^(rules|tiers|tenants|users|api_keys|exemptions|bans)\[`)

// ReadDocument reads the catalog in a config file, or the same in JSON, and ignores
// settings. The error is of type [strict.Problems]. Whether the catalog is valid depends
// on what else is stored: locate adds the places of such problems.
func ReadDocument(file string, data []byte) (d *catalog.Document, locate func(strict.Problems) strict.Problems, err error) {
	c, decode := defaults(), strict.TOML
	isJSON := bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) // which no TOML file starts with
	if isJSON {
		decode = strict.JSON
	}
	doc, problems := decode(file, data, c)
	if len(problems) > 0 && !isJSON {
		problems = withRules(problems, file, data)
	}
	if len(problems) > 0 {
		return nil, nil, problems
	}
	return &c.Document, func(problems strict.Problems) strict.Problems {
		var inside, outside strict.Problems
		for _, p := range problems {
			if inDocument.MatchString(p.Path) {
				inside = append(inside, p)
			} else {
				outside = append(outside, p)
			}
		}
		return append(outside, doc.Locate(inside)...)
	}, nil
}
