package redisstore_test

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/redisstore"
	"github.com/stintdev/stint/storetest"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(workerURL); url != "" {
		if os.Getenv(ledgerFile) != "" {
			os.Exit(refund(url))
		}
		os.Exit(work(url))
	}
	defer testredis.StopShared()
	m.Run()
}

// stores counts the opened stores, to give each its own prefix.
var stores atomic.Int64

// open returns a store with its own prefix, on shared servers.
func open(t testing.TB, url string, o redisstore.Options) *redisstore.Store {
	t.Helper()
	return openURL(t, addPrefix(url), o)
}

// openPatient is open with a long timeout, for the race detector and busy machines.
func openPatient(t testing.TB, url string, o redisstore.Options) *redisstore.Store {
	t.Helper()
	return openURL(t, addPrefix(url)+slow, o)
}

// addPrefix adds a prefix of its own to a URL.
func addPrefix(url string) string {
	sep := "?"
	if strings.Contains(url, "?") {
		sep = "&"
	}
	return fmt.Sprintf("%s%sprefix=t%d", url, sep, stores.Add(1))
}

// openURL opens a store, and closes it when the test ends.
func openURL(t testing.TB, url string, o redisstore.Options) *redisstore.Store {
	t.Helper()
	s, err := redisstore.Open(url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// topologies are the deployments that every test of the suite runs on.
var topologies = map[string]func(testing.TB) string{
	"single":   func(t testing.TB) string { t.Helper(); return testredis.Shared(t).URL() },
	"sentinel": func(t testing.TB) string { t.Helper(); return testredis.SharedSentinels(t).URL() },
	"cluster":  func(t testing.TB) string { t.Helper(); return testredis.SharedCluster(t).URL() },
	"ring":     func(t testing.TB) string { t.Helper(); return testredis.SharedRing(t).URL() },
}

func TestStore(t *testing.T) {
	t.Parallel()
	for name, urlOf := range topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := urlOf(t)
			suite := func(t testing.TB, now func() time.Time) stint.Store {
				t.Helper()
				return openPatient(t, url, redisstore.Options{Now: now})
			}
			storetest.Run(t, suite)
			if name != "cluster" && name != "ring" { // whose takes of several subjects are several calls
				t.Run("across subjects", func(t *testing.T) { storetest.AcrossSubjects(t, suite) })
			}
		})
	}
}

func BenchmarkTake(b *testing.B) { benchmark(b, "single") }

func BenchmarkRingTake(b *testing.B) { benchmark(b, "ring") }

func benchmark(b *testing.B, name string) {
	b.Helper()
	storetest.Bench(b, func(t testing.TB, _ func() time.Time) stint.Store {
		t.Helper()
		return open(t, topologies[name](t), redisstore.Options{})
	})
}
