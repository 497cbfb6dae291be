// Package limits holds the behaviour scripts, the *.txt files beside it, so
// that the conformance suite carries them wherever it is imported.
package limits

import "embed"

// Scripts are the behaviour scripts. docs/behaviour-scripts.md describes them.
//
//go:embed *.txt
var Scripts embed.FS
