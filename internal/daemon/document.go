package daemon

import (
	"bytes"
	"regexp"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
)

// inDocument is how the path of something begins that a document has.
var inDocument = regexp.MustCompile(`^(rules|tiers|tenants|users|api_keys|exemptions|bans)\[`)

// ReadDocument reads the catalog that is in a file, which is a config file, or the same
// in JSON. Settings may be there, and mean nothing here. What is wrong with how it is
// written is in the error, which is of type [strict.Problems]; what is wrong with what it
// says depends on what else there is, and locate finds the places of that.
func ReadDocument(file string, data []byte) (d *catalog.Document, locate func(strict.Problems) strict.Problems, err error) {
	c, decode := defaults(), strict.TOML
	isJSON := bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) // which TOML cannot begin with
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
