package archive_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/stintdev/stint/internal/kit/blob"
)

// memory is a bucket in memory, for tests of what an archive does whatever its bucket is:
// those of directories wait for the disk. The zero memory is empty.
type memory struct {
	mu    sync.Mutex
	files map[string][]byte
}

func (m *memory) Put(ctx context.Context, name string, r io.Reader) error {
	data, err := io.ReadAll(r)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.put(name, data)
	return nil
}

func (m *memory) put(name string, data []byte) {
	if m.files == nil {
		m.files = map[string][]byte{}
	}
	m.files[name] = data
}

func (m *memory) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.files[name]; ok {
		return blob.ErrExists
	}
	m.put(name, bytes.Clone(data))
	return ctx.Err()
}

func (m *memory) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	data, ok := m.files[name]
	if !ok {
		return nil, fmt.Errorf("%s: %w", name, blob.ErrNotFound)
	}
	return io.NopCloser(bytes.NewReader(data)), ctx.Err()
}

func (m *memory) List(ctx context.Context, prefix string) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		if err := ctx.Err(); err != nil {
			yield(blob.Object{}, err)
			return
		}
		m.mu.Lock()
		files := maps.Clone(m.files)
		m.mu.Unlock()
		for _, name := range slices.Sorted(maps.Keys(files)) {
			if strings.HasPrefix(name, prefix) && !yield(blob.Object{Name: name, Size: int64(len(files[name]))}, nil) {
				return
			}
		}
	}
}

func (m *memory) Delete(ctx context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.files, name)
	return ctx.Err()
}

func (m *memory) Check(ctx context.Context) error { return ctx.Err() }

func (m *memory) String() string { return "memory" }
