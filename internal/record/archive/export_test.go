package archive

import (
	"bytes"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/stintdev/stint/internal/record"
)

// Row groups are small here, so that few events make several.
func init() { groupEvents = 1 << 12 }

// DigestOf returns the digest of an event.
func DigestOf(e record.Event) string {
	var d digest
	r := rowOf(&e)
	d.add(&r, nil)
	text, _ := d.MarshalText() // it does not fail
	return string(text)
}

// WithoutSource returns a file of a version that did not keep how clients were identified.
func WithoutSource(t *testing.T, events []record.Event) []byte {
	t.Helper()
	return olderFile(t, earlier[0], events, func(r row) pathRow { return r.pathRow })
}

// WithoutPath returns a file of a version without paths.
func WithoutPath(t *testing.T, events []record.Event) []byte {
	t.Helper()
	return olderFile(t, earlier[1], events, func(r row) settledRow { return r.settledRow })
}

func olderFile[R any](t *testing.T, s *parquet.Schema, events []record.Event, of func(row) R) []byte {
	t.Helper()
	var file bytes.Buffer
	w := parquet.NewGenericWriter[R](&file, s, parquet.Compression(&parquet.Zstd), parquet.KeyValueMetadata(schemaKey, SchemaVersion))
	for i := range events {
		if _, err := w.Write([]R{of(rowOf(&events[i]))}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}
