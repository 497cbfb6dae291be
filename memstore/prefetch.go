//go:build amd64 || arm64

package memstore

// prefetch has the processor fetch a cell, if it is not nil, to be written to, while it does other
// things. It changes nothing: where there is no such instruction, nothing is done.
//
//go:noescape
func prefetch(x *cell)
