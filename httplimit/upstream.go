package httplimit

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/bits"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint/rule"
)

const (
	// maxTargets is how many targets a route may have: a set of them is a uint64.
	maxTargets = 64
	// maxTries is how many targets a request is tried on.
	maxTries = 3
	// A target that fails maxFailures times in a row is left out for shortPause, and twice
	// as long each time that it fails again, up to longPause.
	maxFailures = 3
	shortPause  = time.Second
	longPause   = 30 * time.Second
	// A target that fails maxMissed checks in a row is down.
	maxMissed = 2
)

// TargetHealth is the health of a target of a route.
type TargetHealth struct {
	Route  string // its host and prefix
	Target string
	// Healthy says that it gets its share of requests. Other targets get requests only
	// when none is healthy.
	Healthy bool
	// Failures is how many times in a row it could not be reached or did not answer.
	Failures int
	// Until is when it is tried again. It is zero if the target is not left out.
	Until time.Time
	// Down says that it fails its checks.
	Down bool
}

// target is one server of a route, with its own connections.
type target struct {
	name      string // as configured
	url       *url.URL
	transport *http.Transport

	failures atomic.Int32
	until    atomic.Int64 // left out until then, in Unix nanoseconds; 0: not left out
	down     atomic.Bool
	mu       sync.Mutex // held while failures and until are changed
}

// newTarget parses the URL of a target: http, https, or h2c, which is HTTP/2 without TLS.
func newTarget(name string, r *Route) (*target, error) {
	const want = "a URL such as http://10.0.0.1:8080, https://api.internal or h2c://10.0.0.1:8080/v2"
	u, err := url.Parse(name)
	if err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, invalid("Targets", name, want)
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	if u.RawPath != "" || (u.Path != "" && rule.CleanPath(u.Path) != u.Path) {
		return nil, invalid("Targets", name, "a URL whose path has no escapes, empty segments or dots")
	}
	t := &target{name: name, url: u}
	t.transport = &http.Transport{
		Protocols:             new(http.Protocols),
		DialContext:           dialer(r.DialTimeout),
		MaxIdleConnsPerHost:   256,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   max(r.DialTimeout, 0),
		ResponseHeaderTimeout: max(r.ResponseTimeout, 0),
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true, // the client and the target agree on that
		// A dead connection must be noticed: it carries many requests.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second},
	}
	switch u.Scheme {
	case "http":
		t.transport.Protocols.SetHTTP1(true)
	case "h2c":
		t.transport.Protocols.SetUnencryptedHTTP2(true)
		u.Scheme = "http"
	case "https":
		t.transport.Protocols.SetHTTP1(true)
		t.transport.Protocols.SetHTTP2(true)
		t.transport.TLSClientConfig = r.TLS.Clone() // a clone of nil is nil
	default:
		return nil, invalid("Targets", name, want)
	}
	return t, nil
}

// dialError says that there is no connection.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// unsent reports whether nothing of the request was sent: there was no connection, or we
// did not trust the target's certificate.
func unsent(err error) bool {
	_, unconnected := errors.AsType[*dialError](err)
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	return unconnected || untrusted
}

func dialer(timeout time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error) {
	d := &net.Dialer{Timeout: max(timeout, 0)}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, &dialError{err}
		}
		return c, nil
	}
}

// healthy reports whether the target gets its share of requests.
func (t *target) healthy(now func() time.Time) bool {
	if t.down.Load() {
		return false
	}
	until := t.until.Load()
	return until == 0 || now().UnixNano() >= until
}

func (t *target) health(route string, now func() time.Time) TargetHealth {
	h := TargetHealth{Route: route, Target: t.name, Healthy: t.healthy(now), Failures: int(t.failures.Load()), Down: t.down.Load()}
	if until := t.until.Load(); until != 0 {
		h.Until = time.Unix(0, until)
	}
	return h
}

// answered records that the target has answered.
func (t *target) answered() {
	if t.failures.Load() == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures.Store(0)
	t.until.Store(0)
}

// failed records that the target could not be reached or did not answer, and returns for
// how long it is left out from now on, or 0. Requests that fail while it is left out do
// not count: they began before, or had no other target.
func (t *target) failed(now time.Time) (pause time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.UnixNano() < t.until.Load() {
		return 0
	}
	n := t.failures.Add(1)
	if n < maxFailures {
		return 0
	}
	pause = min(shortPause<<min(n-maxFailures, 8), longPause)
	t.until.Store(now.Add(pause).UnixNano())
	return pause
}

// watch checks the target until the context ends.
func (t *target) watch(ctx context.Context, c *Check, log *slog.Logger) {
	tick := time.NewTicker(c.Interval)
	defer tick.Stop()
	for missed := 0; ; {
		err := t.check(ctx, c)
		if ctx.Err() != nil {
			return
		}
		missed++
		if err == nil {
			missed = 0
		}
		if down := missed >= maxMissed; t.down.Swap(down) != down {
			log.LogAttrs(ctx, slog.LevelWarn, "target checked", slog.String("target", t.name), slog.Bool("down", down), slog.Any("error", err))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (t *target) check(ctx context.Context, c *Check) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	u := *t.url
	u.Path += c.Path
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return err
	}
	res, err := t.transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	// A body that is read to its end leaves a connection that can be reused.
	if _, err := io.CopyN(io.Discard, res.Body, 64<<10); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if res.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("status %d", res.StatusCode)
	}
	return nil
}

// upstream is the targets of a route. It sends requests to them in turn, and to another
// one if there is no connection.
type upstream struct {
	targets []*target
	turn    atomic.Uint32
	now     func() time.Time
	log     *slog.Logger
}

// choose returns the next target that is healthy and was not tried, or else one that was
// not tried, or nil. If none is healthy, trying is better than failing, because they may have
// recovered. Turns are counted among the targets that can be chosen, so that the
// share of the others is spread evenly.
func (u *upstream) choose(tried uint64) (t *target, mask uint64) {
	if len(u.targets) == 1 && tried == 0 {
		return u.targets[0], 1
	}
	var able uint64
	for i, t := range u.targets {
		if t.healthy(u.now) {
			able |= 1 << i
		}
	}
	if able &^= tried; able == 0 {
		able = (1<<len(u.targets) - 1) &^ tried
	}
	if able == 0 {
		return nil, 0
	}
	for range u.turn.Add(1) % uint32(bits.OnesCount64(able)) {
		able &= able - 1
	}
	i := bits.TrailingZeros64(able)
	return u.targets[i], 1 << i
}

// RoundTrip implements [http.RoundTripper]. Without a connection nothing was sent, so the
// request may go to another target, whatever its method.
func (u *upstream) RoundTrip(r *http.Request) (*http.Response, error) {
	t := tripOf(r.Context())
	for tries := 1; ; tries++ {
		res, err := t.target.transport.RoundTrip(r)
		if err == nil {
			t.target.answered()
			return res, nil
		}
		if r.Context().Err() != nil {
			return nil, err // the client has left or was slow, which is not the target's fault
		}
		again := unsent(err)
		if again || isTimeout(err) {
			if pause := t.target.failed(u.now()); pause > 0 {
				u.log.LogAttrs(r.Context(), slog.LevelWarn, "target left out",
					slog.String("target", t.target.name), slog.Duration("for", pause), slog.Any("error", err))
			}
		}
		if !again || tries == maxTries {
			return nil, err
		}
		next, mask := u.choose(t.tried)
		if next == nil {
			return nil, err
		}
		r = r.WithContext(r.Context())
		at := *r.URL
		r.URL = &at
		t.setTarget(r.URL, next, mask)
	}
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout()
}
