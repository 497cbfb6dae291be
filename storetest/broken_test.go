package storetest

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/test/testdoc"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/memstore"
)

// fault is a way for a store to go wrong. What is not set is right.
type fault struct {
	take   func(b *broken, asks []stint.Ask) ([]stint.Decision, error)
	adjust func(b *broken, asks []stint.Ask) ([]stint.Decision, error)
	reset  func(b *broken, asks []stint.Ask) error
	close  func() error
}

// broken is a store with a fault.
type broken struct {
	stint.Store
	fault
	now     func() time.Time
	mu      sync.Mutex
	last    map[stint.Key]time.Time
	windows map[stint.Key]stint.Window
	latest  time.Time
}

func (b *broken) Take(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if b.take == nil {
		return b.Store.Take(ctx, asks, ds)
	}
	out, err := b.take(b, asks)
	copy(ds, out)
	return err
}

func (b *broken) Adjust(ctx context.Context, asks []stint.Ask, ds []stint.Decision) error {
	if b.adjust == nil {
		return b.Store.Adjust(ctx, asks, ds)
	}
	out, err := b.adjust(b, asks)
	copy(ds, out)
	return err
}

func (b *broken) Reset(ctx context.Context, asks []stint.Ask) error {
	if b.reset != nil {
		return b.reset(b, asks)
	}
	return b.Store.Reset(ctx, asks)
}

func (b *broken) Close() error {
	if b.close != nil {
		return b.close()
	}
	return b.Store.Close()
}

// oneByOne charges the asks of a take one after the other.
func oneByOne(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
	out := make([]stint.Decision, 0, len(asks))
	for i := range asks {
		d, err := Take(context.Background(), b.Store, asks[i:i+1])
		if err != nil {
			return nil, err
		}
		out = append(out, d...)
	}
	return out, nil
}

// lookThenCharge decides and charges in two steps that others can come between.
func lookThenCharge(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
	look := make([]stint.Ask, len(asks))
	for i, a := range asks {
		look[i] = a
		look[i].Cost = 0
	}
	standing, err := Take(context.Background(), b.Store, look)
	if err != nil {
		return nil, err
	}
	for i, d := range standing {
		if d.Remaining < asks[i].Cost || asks[i].Penalty != nil {
			return Take(context.Background(), b.Store, asks)
		}
	}
	runtime.Gosched()
	out, err := Adjust(context.Background(), b.Store, asks)
	for i := range out {
		out[i].Allowed = true
	}
	return out, err
}

// stale answers some calls with an answer from before.
func stale() func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
	var mu sync.Mutex
	var before []stint.Decision
	return func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
		out, err := Take(context.Background(), b.Store, asks)
		mu.Lock()
		defer mu.Unlock()
		if len(before) == len(out) && err == nil {
			out, before = before, out
			return out, nil
		}
		before = out
		return out, err
	}
}

// each applies a change to every decision of a take.
func each(change func(a stint.Ask, d *stint.Decision)) func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
	return func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
		out, err := Take(context.Background(), b.Store, asks)
		for i := range out {
			change(asks[i], &out[i])
		}
		return out, err
	}
}

// TestBroken breaks a store in one way at a time, and checks that the parts of
// the suite that should notice do.
func TestBroken(t *testing.T) {
	if err := flag.Set("rapid.nofailfile", "true"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		fault  fault
		caught []string // by the checks whose names begin so
	}{
		{
			"not all or nothing",
			fault{take: oneByOne},
			[]string{"traces", "hierarchies", "linearizable", "script hierarchy-of-two", "script hierarchy-of-ten", "bad input"},
		},
		{
			"looks, then charges",
			fault{take: lookThenCharge},
			[]string{"one key", "hierarchies", "linearizable"},
		},
		{
			"one unit too many",
			fault{take: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				more := make([]stint.Ask, len(asks))
				for i, a := range asks {
					if more[i] = a; a.Limit.Max > 0 {
						more[i].Limit.Max++
					}
				}
				return Take(context.Background(), b.Store, more)
			}},
			[]string{"traces", "one key", "linearizable", "script fixed_window-admission", "script calendar-day.txt"},
		},
		{
			"charges what it denies",
			fault{take: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				out, err := Take(context.Background(), b.Store, asks)
				for i := range out {
					if !out[i].Allowed && asks[i].Penalty == nil {
						_, err = Adjust(context.Background(), b.Store, asks[i:i+1])
					}
				}
				return out, err
			}},
			[]string{"traces", "linearizable", "script fixed_window-cost.txt", "script token_bucket-admission"},
		},
		{
			"answers with what another was told",
			fault{take: stale()},
			[]string{"traces", "linearizable", "script"},
		},
		{
			"retry a microsecond late",
			fault{take: each(func(_ stint.Ask, d *stint.Decision) {
				if d.RetryAfter > 0 && d.RetryAfter != stint.Never {
					d.RetryAfter += time.Microsecond
				}
			})},
			[]string{"traces", "linearizable", "script sliding_window-boundary", "script token_bucket-boundary", "script calendar-dst-spring"},
		},
		{
			"forgets the algorithm",
			fault{take: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				same := make([]stint.Ask, len(asks))
				for i, a := range asks {
					if same[i] = a; a.Limit.Algorithm != stint.FixedWindow && a.Limit.Validate() == nil {
						same[i].Limit.Algorithm, same[i].Limit.Burst = stint.FixedWindow, 0
					}
				}
				return Take(context.Background(), b.Store, same)
			}},
			[]string{"traces", "script sliding_window", "script token_bucket", "script leaky_bucket", "script sliding_log-boundary"},
		},
		{
			"its clock only runs forwards",
			fault{take: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				b.mu.Lock()
				if b.last == nil {
					b.last = map[stint.Key]time.Time{}
				}
				back := false
				for _, a := range asks {
					back = back || b.now().Before(b.last[a.Key])
					b.last[a.Key] = b.now()
				}
				b.mu.Unlock()
				if back {
					_ = b.Store.Reset(context.Background(), asks[:1])
				}
				return Take(context.Background(), b.Store, asks)
			}},
			[]string{"traces", "script fixed_window-backwards", "script token_bucket-backwards", "script leaky_bucket-backwards"},
		},
		{
			"keys run together",
			fault{take: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				same := make([]stint.Ask, len(asks))
				for i, a := range asks {
					same[i] = a
					same[i].Key = stint.Key{Subject: a.Key.Subject + "_" + a.Key.Name}
				}
				return Take(context.Background(), b.Store, same)
			}},
			[]string{"bad input"},
		},
		{
			"takes a negative cost",
			fault{take: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				for _, a := range asks {
					if a.Cost < 0 {
						return Adjust(context.Background(), b.Store, asks)
					}
				}
				return Take(context.Background(), b.Store, asks)
			}},
			[]string{"bad input"},
		},
		{
			"refunds nothing",
			fault{adjust: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				look := make([]stint.Ask, len(asks))
				for i, a := range asks {
					if look[i] = a; a.Cost < 0 {
						look[i].Cost = 0
					}
				}
				return Adjust(context.Background(), b.Store, look)
			}},
			[]string{"traces", "linearizable", "script fixed_window-refund", "script sliding_log-refund", "script leaky_bucket-refund"},
		},
		{
			"records no violation",
			fault{take: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				look := slices.Clone(asks)
				for i := range look {
					if look[i].Penalty != nil && look[i].Penalty.Threshold > 0 {
						look[i].Cost = 0
					}
				}
				return Take(context.Background(), b.Store, look)
			}},
			[]string{"traces", "linearizable", "penalty", "script penalty-ladder", "script penalty-changed"},
		},
		{
			"blames everyone",
			fault{take: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				out, err := Take(context.Background(), b.Store, asks)
				for i := range out {
					if p := asks[i].Penalty; p != nil && deniedAmong(out) && out[i].Allowed {
						never := stint.Limit{Max: 1, Window: stint.Every(time.Second)}
						again, err := Take(context.Background(), b.Store, []stint.Ask{
							{Key: asks[i].Key, Limit: never, Cost: 2}, {Key: asks[i].Key, Cost: 1, Penalty: p},
						})
						if err != nil {
							return nil, err
						}
						out[i] = again[1]
					}
				}
				return out, err
			}},
			[]string{"traces", "script penalty-scope", "script penalty-peek"},
		},
		{
			"forgets no one",
			fault{reset: func(*broken, []stint.Ask) error { return nil }},
			[]string{"traces", "linearizable", "script fixed_window-reset", "close"},
		},
		{
			"forgets the key, whatever counts it",
			fault{reset: func(b *broken, asks []stint.Ask) error {
				for _, a := range asks {
					for _, l := range everyLimit(1) {
						_ = b.Store.Reset(context.Background(), []stint.Ask{{Key: a.Key, Limit: l}})
					}
				}
				return nil
			}},
			[]string{"reset"},
		},
		{
			"does not look at the room for its answers",
			fault{take: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				return Take(context.Background(), b.Store, asks)
			}},
			[]string{"bad input"},
		},
		{
			"uses the plan of another limit",
			fault{take: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				planned := slices.Clone(asks)
				for i := range planned {
					if p := planned[i].Plan; p != nil {
						planned[i].Limit = p.Limit()
					}
				}
				return Take(context.Background(), b.Store, planned)
			}},
			[]string{"plans"},
		},
		{
			"never closes",
			fault{close: func() error { return nil }},
			[]string{"close"},
		},
		{
			"changes its asks",
			fault{take: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				defer func() {
					if len(asks) > 0 {
						asks[0].Limit.Max = 1
					}
				}()
				return Take(context.Background(), b.Store, asks)
			}},
			[]string{"traces"},
		},
		{
			"changes what it adjusts",
			fault{adjust: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				defer func() {
					if len(asks) > 0 {
						asks[0].Key.Name = "other"
					}
				}()
				return Adjust(context.Background(), b.Store, asks)
			}},
			[]string{"traces"},
		},
		{
			"fails without asks",
			fault{take: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				if len(asks) == 0 {
					return nil, stint.ErrUnavailable
				}
				return Take(context.Background(), b.Store, asks)
			}},
			[]string{"empty calls"},
		},
		{
			"one counter for all windows",
			fault{take: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				// The first window that a key is asked under, as if it were its name.
				same := slices.Clone(asks)
				b.mu.Lock()
				if b.windows == nil {
					b.windows = map[stint.Key]stint.Window{}
				}
				for i := range same {
					a := &same[i]
					if w, ok := b.windows[a.Key]; ok && a.Penalty == nil && a.Limit.Validate() == nil {
						if a.Limit.Window = w; a.Limit.Validate() != nil {
							a.Limit.Window = asks[i].Limit.Window
						}
					} else {
						b.windows[a.Key] = a.Limit.Window
					}
				}
				b.mu.Unlock()
				return Take(context.Background(), b.Store, same)
			}},
			[]string{"script fixed_window-two-windows", "script sliding_window-two-windows", "script calendar-two-windows"},
		},
		{
			"refunds that are not tied to their charge",
			fault{adjust: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				loose := slices.Clone(asks)
				for i := range loose {
					loose[i].Charge = nil
				}
				return Adjust(context.Background(), b.Store, loose)
			}},
			[]string{
				"traces", "charges", "script fixed_window-late-refund", "script sliding_window-late-refund", "script sliding_log-late-refund",
				"script token_bucket-late-refund", "script amend-once", "script amend-reset", "script concurrency-amend",
			},
		},
		{
			"gives back what was charged before a reset",
			fault{reset: func(b *broken, asks []stint.Ask) error {
				// It empties the counter, and leaves no mark.
				for _, a := range asks {
					if a.Penalty == nil && a.Limit.Validate() == nil {
						a.Cost, a.Charge = -1<<53, nil
						if _, err := Adjust(context.Background(), b.Store, []stint.Ask{a}); err != nil {
							return err
						}
						continue
					}
					if err := b.Store.Reset(context.Background(), []stint.Ask{a}); err != nil {
						return err
					}
				}
				return nil
			}},
			[]string{"script amend-reset"},
		},
		{
			"takes what was given back for what drains first",
			fault{adjust: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				more := slices.Clone(asks)
				for i := range more {
					if more[i].Charge != nil {
						charge := *more[i].Charge
						charge.Reset *= 2
						more[i].Charge = &charge
					}
				}
				return Adjust(context.Background(), b.Store, more)
			}},
			[]string{"script token_bucket-refunds", "script leaky_bucket-refunds"},
		},
		{
			"makes a change as often as it is sent",
			fault{adjust: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				again := slices.Clone(asks)
				for i := range again {
					if again[i].Charge != nil {
						charge := *again[i].Charge
						charge.ID = ""
						again[i].Charge = &charge
					}
				}
				return Adjust(context.Background(), b.Store, again)
			}},
			[]string{"script amend-once"},
		},
		{
			"settles one counter after the other",
			fault{adjust: func(b *broken, asks []stint.Ask) (out []stint.Decision, err error) {
				for i := range asks {
					d, failed := Adjust(context.Background(), b.Store, asks[i:i+1])
					if failed != nil {
						return nil, failed
					}
					out = append(out, d...)
					runtime.Gosched()
				}
				return out, err
			}},
			[]string{"settlements"},
		},
		{
			"holds a clock that steps back at the last time it has seen",
			fault{take: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				b.mu.Lock()
				defer b.mu.Unlock()
				s := b.Store.(*spec)
				if now := b.now(); now.After(b.latest) {
					b.latest = now
				}
				held := b.latest
				s.now = func() time.Time { return held }
				return Take(context.Background(), s, asks)
			}},
			[]string{"script fixed_window-backwards", "script sliding_window-backwards", "script token_bucket-backwards", "script penalty-backwards"},
		},
		{
			"a changed rate that acts backwards",
			fault{take: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				b.mu.Lock()
				defer b.mu.Unlock()
				s := b.Store.(*spec)
				for i := range asks {
					id := idOf(&asks[i])
					st := s.counters[id]
					p, err := asks[i].Limit.Compile()
					if err != nil || st.Used == 0 || asks[i].Limit.Algorithm != stint.TokenBucket {
						continue
					}
					// What was used, in parts of the new size, since it was charged.
					t := p.Terms()
					st.Used, st.Aux = st.Used/st.Aux*t.Unit, t.Unit
					st.Until = st.At + (st.Used+t.Rate-1)/t.Rate*t.Tick
					s.counters[id] = st
				}
				return Take(context.Background(), s, asks)
			}},
			[]string{"script token_bucket-changed-rate"},
		},
		{
			"takes charges of other counters",
			fault{adjust: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				mine := slices.Clone(asks)
				for i := range mine {
					if mine[i].Charge != nil {
						charge := *mine[i].Charge
						charge.Counter, charge.At = counterMark(&mine[i]), min(charge.At, b.now().UnixMicro())
						mine[i].Charge = &charge
					}
				}
				return Adjust(context.Background(), b.Store, mine)
			}},
			[]string{"charges"},
		},
		{
			"charges many in parts",
			fault{take: func(b *broken, asks []stint.Ask) (out []stint.Decision, err error) {
				for some := range slices.Chunk(asks, 500) {
					part, failed := Take(context.Background(), b.Store, some)
					if failed != nil {
						err = failed
					}
					out = append(out, part...)
				}
				return out, err
			}},
			[]string{"many asks"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := checks()
			for _, s := range Scripts() {
				all = append(all, check{"script " + s.Name, s.Run})
			}
			missed := slices.Clone(c.caught)
			// A race is not lost every time, least of all on a busy machine.
			for tries := 0; len(missed) > 0 && tries < 30; tries++ {
				for _, ch := range all {
					wanted := func(name string) bool { return strings.HasPrefix(ch.name, name) }
					if !slices.ContainsFunc(missed, wanted) {
						continue
					}
					clock := NewClock()
					store := &broken{Store: Spec(clock.Now), fault: c.fault, now: clock.Now}
					if attempt(func(t rapid.TB) { ch.run(t, store, clock) }) != "" {
						missed = slices.DeleteFunc(missed, wanted)
					}
				}
			}
			if len(missed) > 0 {
				t.Errorf("not caught by %q", missed)
			}
		})
	}
}

// TestBrokenLeases breaks a store that leases, and checks that RunLeased notices.
func TestBrokenLeases(t *testing.T) {
	const term = 50 * time.Millisecond
	as := func(algorithm stint.Algorithm, asks []stint.Ask) []stint.Ask {
		asks = slices.Clone(asks)
		for i := range asks {
			if asks[i].Policy != nil { // not what leases count for themselves
				asks[i].Limit.Algorithm, asks[i].Plan = algorithm, nil
			}
		}
		return asks
	}
	for _, c := range []struct {
		name            string
		outside, inside fault
		caught          bool
	}{
		{name: "nothing"},
		{
			name: "spends units after the window in which they were charged",
			// Leases take it for a limit without windows, and the store counts in windows.
			outside: fault{
				take: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
					return Take(context.Background(), b.Store, as(stint.SlidingLog, asks))
				},
				adjust: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
					return Adjust(context.Background(), b.Store, as(stint.SlidingLog, asks))
				},
				reset: func(b *broken, asks []stint.Ask) error {
					return b.Store.Reset(context.Background(), as(stint.SlidingLog, asks))
				},
			},
			inside: fault{
				take: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
					return Take(context.Background(), b.Store, as(stint.FixedWindow, asks))
				},
				adjust: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
					return Adjust(context.Background(), b.Store, as(stint.FixedWindow, asks))
				},
				reset: func(b *broken, asks []stint.Ask) error {
					return b.Store.Reset(context.Background(), as(stint.FixedWindow, asks))
				},
			},
			caught: true,
		},
		{
			name: "loses one of the units that it gives back",
			inside: fault{adjust: func(b *broken, asks []stint.Ask) ([]stint.Decision, error) {
				less := slices.Clone(asks)
				for i := range less {
					if len(asks) > 1 && less[i].Policy != nil { // with what leases count for themselves: it is no refund of the caller
						less[i].Cost++
					}
				}
				return Adjust(context.Background(), b.Store, less)
			}},
			caught: true,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			caught := ""
			for seed := uint64(0); seed < 8 && caught == ""; seed++ {
				synctest.Test(t, func(t *testing.T) {
					leased, err := layer.Lease(&broken{Store: Spec(time.Now), fault: c.inside}, layer.LeaseOptions{Begin: 2})
					if err != nil {
						t.Fatal(err)
					}
					defer leased.Close()
					store := &broken{Store: leased, fault: c.outside}
					caught = attempt(func(t rapid.TB) { newLeasedTrace(t, seed, "500/1s fixed_window", term, store).run(seed) })
				})
			}
			if caught != "" != c.caught || !strings.Contains(caught, "remains") && c.caught {
				t.Errorf("it has caught %q", caught)
			}
		})
	}
}

// TestDocument runs the scripts of docs/behaviour-scripts.md, and has one fail as it says.
func TestDocument(t *testing.T) {
	t.Parallel()
	blocks := testdoc.In(t, "docs/behaviour-scripts.md", "text")
	if len(blocks) != 7 {
		t.Fatalf("it has %d blocks, want a script, limits, a penalty, a step, changes of charges, a start and a failure", len(blocks))
	}
	run := func(t rapid.TB, name, text string) {
		s, err := ParseScript(name, text)
		if err != nil {
			t.Fatal(err)
		}
		clock := NewClock()
		store, err := memstore.New(memstore.Options{Now: clock.Now})
		if err != nil {
			t.Fatal(err)
		}
		s.Run(t, store, clock)
	}
	run(t, "script", blocks[0].Text)
	run(t, "changes", blocks[4].Text)
	for _, b := range []testdoc.Block{blocks[1], blocks[2], blocks[5]} {
		run(t, "lines", b.Text+"limit 10/1s\nat 0s take alice -> allow\n")
	}
	if line := blocks[3].Text; !strings.HasPrefix(line, "at TIME VERB SUBJECT ") {
		t.Errorf("a step is %s", line)
	}
	failure := attempt(func(t rapid.TB) {
		run(t, "token_bucket-burst.txt", "#\nlimit 20/1s token_bucket\n\nat 0s take alice x20 -> allow\n\nat 0s take alice -> deny retry=100ms")
	})
	if strings.TrimSpace(failure) != strings.TrimSpace(blocks[6].Text) {
		t.Errorf("got %s\nwant %s", failure, blocks[6].Text)
	}
}

// attempt runs a check and returns what it failed with, or nothing.
func attempt(check func(t rapid.TB)) string {
	r := &recorder{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		check(r)
	}()
	<-done
	return r.said
}

// recorder is a test that notes its failure.
type recorder struct {
	rapid.TB // nil: what the checks do not call
	said     string
}

func (r *recorder) Helper()             {}
func (r *recorder) Name() string        { return "broken" }
func (r *recorder) Logf(string, ...any) {}
func (r *recorder) Log(...any)          {}
func (r *recorder) Failed() bool        { return r.said != "" }
func (r *recorder) Fail()               { r.said += "failed" }
func (r *recorder) FailNow() {
	r.Fail()
	runtime.Goexit()
}
func (r *recorder) Errorf(format string, args ...any) { r.said += fmt.Sprintf(format, args...) }
func (r *recorder) Error(args ...any)                 { r.said += fmt.Sprint(args...) }
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatal(args ...any) {
	r.Error(args...)
	runtime.Goexit()
}
