//go:build torture

package httplimit_test

import (
	"io"
	"net/http"
	"runtime"
	"testing"

	"github.com/stintdev/stint/internal/test/torture"
)

// TestModelMemory measures what meters add to the memory of a stream while it is open.
func TestModelMemory(t *testing.T) { //nolint:paralleltest // it measures memory
	const streams = 200
	heap := func(rules string) int64 {
		goOn := make(chan struct{})
		url := streaming(t, rules, 2, goOn)
		client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
		defer client.CloseIdleConnections()
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		all := make([]io.ReadCloser, streams)
		for i := range all {
			all[i] = open(t, client, url, -1)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		close(goOn)
		for _, body := range all {
			_, _ = io.Copy(io.Discard, body)
			_ = body.Close()
		}
		return (int64(after.HeapInuse) - int64(before.HeapInuse)) / streams
	}
	heap(noMeters) // what is allocated once
	plain, metered := heap(noMeters), heap(modelMeters)
	t.Logf("a stream needs %d KB with client and provider, and %d KB with meters", plain>>10, metered>>10)
	torture.AtMost(t, "bytes that meters add to a stream", metered-plain, 16<<10)
}
