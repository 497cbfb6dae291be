// Package packed holds large texts that are embedded in the binary, such as the documents of the APIs, compressed. A test of each
// keeps the packed file in step with the text beside it, which people read.
package packed

import (
	"bytes"
	"compress/gzip"
	"io"
	"sync"
)

// Text returns a function that unpacks a text when it is first called. It panics if that is not what [Pack] has made: it is part of
// the binary.
func Text(packed []byte) func() []byte {
	return sync.OnceValue(func() []byte {
		r, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			panic(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			panic(err)
		}
		return text
	})
}

// Pack packs a text. It is for tests, which write it to a file.
func Pack(text []byte) []byte {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		panic(err) // there is such a level
	}
	_, _ = w.Write(text) // memory takes everything
	_ = w.Close()
	return b.Bytes()
}
