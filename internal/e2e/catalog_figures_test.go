package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/rule"
)

// verdict is the part of a response of the decision API that these tests use. A failed
// request has no outcome.
type verdict struct {
	Allowed bool
	Outcome string
	Rule    string
	Status  int
	Reason  string
	Limits  []struct {
		Rule string
		Max  int64
	}
}

// post asks the decision API.
func post(c *http.Client, url, body string, into any) error {
	w, err := c.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer w.Body.Close()
	text, err := io.ReadAll(w.Body)
	if err != nil || w.StatusCode != http.StatusOK {
		return errors.Join(fmt.Errorf("%s: %s", w.Status, text), err)
	}
	return json.Unmarshal(text, into)
}

// check asks for one decision.
func (s *server) check(t testing.TB, request string) verdict {
	t.Helper()
	var v verdict
	if err := post(http.DefaultClient, s.api+"/v1/check", request, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// load requests decisions at a constant rate.
type load struct {
	decided atomic.Int64
	batches []atomic.Int64 // of each node
	slowest atomic.Int64   // batch, in nanoseconds
	begun   time.Time
	quit    chan struct{}
	work    sync.WaitGroup
}

// batch is how many decisions a load requests at once, and pace how often.
const (
	batch = 25
	pace  = 10 * time.Millisecond
)

// startLoad requests 2,500 decisions per second from each node, if the machine can, until
// the load is stopped. The requests are used in turn. Every verdict is checked, in the
// order of the requests of a node; an error ends that load.
func startLoad(t *testing.T, nodes []*server, requests []string, look func(node int, v *verdict) error) *load {
	t.Helper()
	var body strings.Builder
	for i := range batch {
		fmt.Fprintf(&body, "%s,", requests[i%len(requests)])
	}
	text := `{"requests": [` + strings.TrimSuffix(body.String(), ",") + `]}`
	l := &load{batches: make([]atomic.Int64, len(nodes)), begun: time.Now(), quit: make(chan struct{})}
	t.Cleanup(func() { l.stop() })
	for node, s := range nodes {
		c := newClient(t, "127.0.0.1", s.api)
		l.work.Go(func() {
			tick := time.NewTicker(pace)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
				case <-l.quit:
					return
				}
				var got struct{ Verdicts []verdict }
				asked := time.Now()
				err := post(&c.Client, c.url+"/v1/check/batch", text, &got)
				if err == nil && len(got.Verdicts) != batch {
					err = fmt.Errorf("%d verdicts, want %d", len(got.Verdicts), batch)
				}
				for i := range got.Verdicts {
					err = errors.Join(err, look(node, &got.Verdicts[i]))
				}
				if err != nil {
					t.Errorf("node %d, after %d decisions: %v", node, l.decided.Load(), err)
					return
				}
				for took := int64(time.Since(asked)); ; {
					if slowest := l.slowest.Load(); took <= slowest || l.slowest.CompareAndSwap(slowest, took) {
						break
					}
				}
				l.decided.Add(batch)
				l.batches[node].Add(1)
			}
		})
	}
	return l
}

// stop ends the load, and logs its size.
func (l *load) stop() string {
	select {
	case <-l.quit:
	default:
		close(l.quit)
	}
	l.work.Wait()
	took := time.Since(l.begun)
	return fmt.Sprintf("%d decisions in %.1f s, %.0f/s, the slowest %d of them in %v", l.decided.Load(), took.Seconds(),
		float64(l.decided.Load())/took.Seconds(), batch, time.Duration(l.slowest.Load()).Round(time.Millisecond))
}

// moves waits until each node has made another decision.
func (l *load) moves(t testing.TB) {
	t.Helper()
	for node := range l.batches {
		before := l.batches[node].Load()
		wait.Nil(t, "both nodes decide", func() error {
			if n := l.batches[node].Load() - before; n < 2 { // the first may have been asked before
				return fmt.Errorf("node %d has decided %d batches", node, n)
			}
			return nil
		})
	}
}

// Generations start here: no limit of a generation is ever reached.
const generations = 1_000_000_000

// generation is a catalog in which three rules that apply to every request have the same
// limit, one of them by a tier.
func generation(n int64) *catalog.Document {
	limit := fmt.Sprintf("%d/1h fixed_window", generations+n)
	by := func(name, limit string) rule.Rule {
		return rule.Rule{Name: name, CountBy: []rule.Dimension{"user"}, Limits: []rule.Limit{{Name: name, Limit: limit}}}
	}
	return &catalog.Document{File: rule.File{
		Rules: []rule.Rule{by("one", limit), by("three", "1/1h"), by("two", limit)},
		Tiers: []rule.Tier{{Name: "gold", Limits: map[string]string{"three": limit}}},
	}}
}

// generationOf returns the generation that has decided, or an error if there is not exactly
// one.
func generationOf(v *verdict) (int64, error) {
	if v.Outcome != "allowed" || len(v.Limits) != 3 {
		return 0, fmt.Errorf("%+v, want it allowed by three limits", *v)
	}
	for _, l := range v.Limits {
		if l.Max != v.Limits[0].Max {
			return 0, fmt.Errorf("%+v, want all of one generation", v.Limits)
		}
	}
	return v.Limits[0].Max - generations, nil
}
