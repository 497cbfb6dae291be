// Package web is the dashboard: the files that the admin listener serves to browsers.
//
// They are built with Node (make web) and are not in the repository. Where they have not
// been built, a page stands in for them that says how to, so that the module builds with Go
// alone. The package serves nothing itself, and knows nothing of what the files do.
package web

import (
	"embed"
	"io/fs"
)

// dist is what was built, if it was, and the page that stands in for it, which is always
// there: a pattern of embed has to match something.
//
//go:embed all:dist*
var dist embed.FS

// Files returns the dashboard, with its index.html at the top, or the page that says how to
// build it.
func Files() fs.FS { return pick(dist) }

// pick returns the folder of the tree that is to be served.
func pick(tree fs.FS) fs.FS {
	name := "dist"
	if _, err := fs.Stat(tree, "dist/index.html"); err != nil {
		name = "dist-placeholder"
	}
	files, err := fs.Sub(tree, name)
	if err != nil {
		panic(err) // the names above are valid
	}
	return files
}
