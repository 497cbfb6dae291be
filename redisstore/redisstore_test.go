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

// addPrefix adds a prefix of its own to a URL.
func addPrefix(url string) string { return add(url, fmt.Sprint("prefix=t", stores.Add(1))) }

// patient adds long time-outs to a URL that names none: a busy machine may take long to answer, and to connect.
func patient(url string) string {
	if strings.Contains(url, "timeout=") {
		return url
	}
	return add(url, "timeout=30s&dial_timeout=30s")
}

// add adds a parameter to a URL.
func add(url, param string) string {
	if strings.Contains(url, "?") {
		return url + "&" + param
	}
	return url + "?" + param
}

// openURL opens a store, which is patient unless the URL says otherwise, and closes it when the test ends.
func openURL(t testing.TB, url string, o redisstore.Options) *redisstore.Store {
	t.Helper()
	s, err := redisstore.Open(patient(url), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// topologies are the deployments that tests run on.
var topologies = map[string]func(testing.TB) string{
	"single":   func(t testing.TB) string { t.Helper(); return testredis.Shared(t).URL() },
	"sentinel": func(t testing.TB) string { t.Helper(); return testredis.SharedSentinels(t).URL() },
	"cluster":  func(t testing.TB) string { t.Helper(); return testredis.SharedCluster(t).URL() },
	"ring":     func(t testing.TB) string { t.Helper(); return testredis.SharedRing(t).URL() },
}

// TestStore runs the suite. TestACL does with sentinels, whose primary is a single server.
func TestStore(t *testing.T) {
	t.Parallel()
	for name, urlOf := range topologies {
		if name == "sentinel" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := urlOf(t)
			suite := func(t testing.TB, now func() time.Time) stint.Store {
				t.Helper()
				return open(t, url, redisstore.Options{Now: now})
			}
			switch name {
			case "single":
				storetest.Run(t, suite)
				t.Run("across subjects", func(t *testing.T) { storetest.AcrossSubjects(t, suite) })
			case "cluster":
				storetest.RunExcept(t, suite, "many asks") // see TestMany
			default: // a take of several subjects is several calls, as in a cluster
				storetest.RunExcept(t, suite, "traces", "linearizable", "many asks")
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
