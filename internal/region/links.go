package region

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/quiet"
	"github.com/stintdev/stint/internal/region/gossip"
	"github.com/stintdev/stint/internal/region/link"
)

// LinksOptions are the options of [OpenLinks].
type LinksOptions struct {
	// Identity is this node. Its Clock and Standing are those of Gossip.
	Identity link.Identity
	// Peers are the URLs of the other regions, by name.
	Peers map[string]string
	// TLS is for URLs that begin with https, and called for each connection. Default: the authorities of the system.
	TLS func() *tls.Config
	// Gossip has what is to be told.
	Gossip *gossip.Store
	// Interval is how often the others are told. Default 1 s.
	Interval time.Duration
}

// Links has the links of this node to all other regions, and tells them what was admitted here. It is a
// [link.Receiver] for what they tell.
type Links struct {
	o     LinksOptions
	log   *slog.Logger
	links map[string]*told
	stop  context.CancelFunc
	work  sync.WaitGroup
}

// told is a link, and who may send on it: a connection must not change between a batch that is next and its sending.
type told struct {
	mu sync.Mutex
	*link.Link
}

// OpenLinks returns links, which connect in the background. The caller must close them.
func OpenLinks(o LinksOptions) (*Links, error) {
	o.Interval = cmp.Or(o.Interval, time.Second)
	o.Identity.Clock, o.Identity.Standing = o.Gossip.Clock, o.Gossip.Standing
	ctx, stop := context.WithCancel(context.Background()) //nolint:forbidigo // it ends with Close
	l := &Links{o: o, log: slog.New(slog.DiscardHandler), links: map[string]*told{}, stop: stop}
	if o.Identity.Log != nil {
		l.log = slog.New(quiet.New(o.Identity.Log.Handler(), "region"))
	}
	for region := range o.Peers {
		l.links[region] = new(told)
	}
	for region, url := range o.Peers {
		t := l.links[region]
		t.mu.Lock() // until it is there
		opened, err := link.Open(link.Options{
			Identity: o.Identity, Region: region, URL: url, TLS: o.TLS,
			Connected: func(region string, _ gossip.Sender) {
				t.mu.Lock()
				o.Gossip.Connected(region)
				t.mu.Unlock()
			},
			Acknowledged: o.Gossip.Acknowledged,
			Heard:        o.Gossip.Heard,
		})
		t.Link = opened
		t.mu.Unlock()
		if err != nil {
			delete(l.links, region)
			return nil, errors.Join(err, l.Close())
		}
	}
	l.work.Go(func() { l.tell(ctx) })
	l.work.Go(func() { l.tick(ctx) })
	return l, nil
}

// tell tells the others at every interval, and at once if a take waits for it.
func (l *Links) tell(ctx context.Context) {
	tick := time.NewTicker(l.o.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-l.o.Gossip.Urgent():
		}
		l.tellAll()
	}
}

func (l *Links) tellAll() {
	for region, t := range l.links {
		for l.tellOne(region, t) {
		}
	}
}

// tellOne sends the next batch to a region. It reports whether there may be more.
func (l *Links) tellOne(region string, t *told) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.State().Up {
		return false // what is told later is told as it is then
	}
	b, ok := l.o.Gossip.Next(region)
	if !ok {
		return false
	}
	err := t.Send(b)
	if err == nil {
		return true
	}
	l.o.Gossip.Unsent(region)
	if !errors.Is(err, link.ErrDown) && !errors.Is(err, link.ErrFull) { // then it is sent later
		l.log.Error("cannot tell another region what was admitted", "region", region, "batch", b.Number, "error", err)
	}
	return false
}

func (l *Links) tick(ctx context.Context) {
	const often = 500 * time.Millisecond
	tick := time.NewTicker(often)
	defer tick.Stop()
	for {
		one, cancel := context.WithTimeout(ctx, time.Second)
		l.o.Gossip.Tick(one)
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Receive charges what a node of another region has told.
func (l *Links) Receive(ctx context.Context, from gossip.Sender, b gossip.Batch) error {
	return l.o.Gossip.Receive(ctx, from, b)
}

// Central returns the store of a region, for its central counters, or nil if it is not known.
func (l *Links) Central(region string) stint.Store {
	if t := l.links[region]; t != nil {
		return t.Store()
	}
	return nil
}

// State is how this node stands with another region.
type State struct {
	Link link.State
	Told gossip.PeerStats
}

// States returns how this node stands with the others, in the order of their names.
func (l *Links) States() []State {
	var out []State
	for _, p := range l.o.Gossip.Peers() {
		if t := l.links[p.Region]; t != nil {
			out = append(out, State{t.State(), p})
		}
	}
	return out
}

// Close tells the others what they do not know yet, waits up to a second for their acknowledgements, and closes the
// links.
func (l *Links) Close() error {
	l.stop()
	l.work.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) //nolint:forbidigo // no caller waits longer
	defer cancel()
	for l.tellAll(); l.owing() && ctx.Err() == nil; l.tellAll() {
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	var errs []error
	for _, t := range l.links {
		errs = append(errs, t.Close())
	}
	return errors.Join(errs...)
}

// owing reports whether a region that is connected has something to acknowledge.
func (l *Links) owing() bool {
	for _, s := range l.States() {
		if s.Link.Up && (s.Told.Backlog > 0 || s.Told.Unacknowledged > 0) {
			return true
		}
	}
	return false
}
