package httplimit

import (
	"cmp"
	"context"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Transport is an [http.RoundTripper] for clients that keeps to the limits of servers. The
// zero value is ready for use, by several goroutines at once.
//
// If a host has said that nothing is left, with RateLimit or X-RateLimit headers, or has
// asked to wait, with Retry-After, further requests to it wait before they are sent; when
// the time is over, one of them is sent first, to find out. Requests that are denied with
// 429 or 503 are sent again after the time that the server has said, or else after 1 s,
// 2 s, 4 s. All waits are a little longer, so that clients do not come back all at once.
// A request is sent again only if it has no body or has GetBody and, after a 503, only if
// it is idempotent.
//
// No request waits longer than MaxWait in all, or past the deadline of its context: it is
// sent at once instead, or the denial is returned.
type Transport struct {
	// Base sends the requests. Default http.DefaultTransport.
	Base http.RoundTripper
	// MaxRetries is how many times a request is sent again. Default 3; negative: none.
	MaxRetries int
	// MaxWait is how long a request waits in all. Default 1 minute.
	MaxWait time.Duration

	mu    sync.Mutex
	hosts map[string]*allowance // at most maxHosts
}

// maxHosts is how many hosts a transport remembers. To add one more, it forgets another.
const maxHosts = 1024

// allowance is what a host has said it allows.
type allowance struct {
	left    int64         // how many more requests may be sent
	during  time.Duration // for how long; 0: the host has not said
	until   time.Time     // when that time is over
	flying  int64         // requests without a response yet, which the host may not have counted
	probing bool          // one of these was sent to find out what is allowed now
	changed chan struct{} // closed when waiting requests should look again; nil: none waits
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base, retries, patience := t.Base, cmp.Or(t.MaxRetries, 3), cmp.Or(t.MaxWait, time.Minute)
	if base == nil {
		base = http.DefaultTransport
	}
	ctx := r.Context()
	host := t.host(r.URL.Scheme + "://" + r.URL.Host)
	for try := 0; ; try++ {
		for willing := true; ; {
			wait, changed := t.begin(host, willing)
			if wait == 0 {
				break
			}
			var err error
			if willing, err = sleep(ctx, wait, changed, &patience); err != nil {
				closeBody(r)
				return nil, err
			}
		}
		response, err := base.RoundTrip(r)
		wait, told := t.end(host, response)
		if err != nil || !isDenial(response) || try >= retries {
			return response, err
		}
		again, ok := replay(r, response.StatusCode)
		if !ok {
			return response, nil
		}
		if !told {
			wait = time.Second << min(try, 10)
		}
		waited, err := sleep(ctx, wait, nil, &patience)
		if err == nil && !waited {
			closeBody(again)
			return response, nil
		}
		const maxDrained = 64 << 10 // so that the connection can be reused
		_, _ = io.CopyN(io.Discard, response.Body, maxDrained)
		_ = response.Body.Close()
		if err != nil {
			closeBody(again)
			return nil, err
		}
		r = again
	}
}

// closeBody closes the body of a request that is not sent, as a RoundTripper must.
func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close() // nothing was read
	}
}

// host returns the allowance of a host.
func (t *Transport) host(name string) *allowance {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a := t.hosts[name]; a != nil {
		return a
	}
	if t.hosts == nil {
		t.hosts = map[string]*allowance{}
	}
	if len(t.hosts) >= maxHosts {
		for any := range t.hosts {
			delete(t.hosts, any)
			break
		}
	}
	a := new(allowance)
	t.hosts[name] = a
	return a
}

// begin counts a request that is about to be sent. If the request has to wait, and is
// willing to, begin returns how long, and a channel that is closed if something changes.
func (t *Transport) begin(a *allowance, willing bool) (wait time.Duration, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch now := time.Now(); {
	case a.during == 0:
	case now.Before(a.until):
		if a.left <= 0 && willing {
			if a.changed == nil {
				a.changed = make(chan struct{})
			}
			return a.until.Sub(now), a.changed
		}
	case a.left > 0:
		a.during = 0 // the time is over
	default:
		a.probing, a.until = true, now.Add(a.during)
	}
	a.left--
	a.flying++
	return 0, nil
}

// end remembers what the response says, if there is one, and returns how long it says to
// wait, if it does.
func (t *Transport) end(a *allowance, response *http.Response) (wait time.Duration, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a.flying--
	now, left := time.Now(), int64(0)
	if response != nil {
		left, wait, ok = told(response, now)
	}
	switch {
	case ok:
		a.left, a.during, a.until = left-a.flying, wait, now.Add(wait)
	case a.probing:
		a.during = 0 // the host no longer says
	default:
		a.left++ // the host has not counted this request
	}
	a.probing = false
	if a.changed != nil && (a.left > 0 || a.during == 0) {
		close(a.changed)
		a.changed = nil
	}
	return wait, ok && left <= 0
}

// sleep waits until the time is over or something has changed, if patience and the
// context's deadline allow it. It reports whether it has waited.
func sleep(ctx context.Context, wait time.Duration, changed <-chan struct{}, patience *time.Duration) (bool, error) {
	const maxSpread = 10 * time.Second
	wait += rand.N(min(wait, maxSpread)/10 + time.Millisecond)
	deadline, ok := ctx.Deadline()
	if wait > *patience || (ok && wait > time.Until(deadline)) {
		return false, ctx.Err()
	}
	begin := time.Now()
	defer func() { *patience -= time.Since(begin) }()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-changed:
		return true, nil
	case <-timer.C:
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func isDenial(r *http.Response) bool {
	return r.StatusCode == http.StatusTooManyRequests || r.StatusCode == http.StatusServiceUnavailable
}

var idempotent = []string{
	http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete,
}

// replay returns the request to send again, if that is safe. After a 429 nothing was
// done; after a 503 something may have been.
func replay(r *http.Request, status int) (*http.Request, bool) {
	if status != http.StatusTooManyRequests && !slices.Contains(idempotent, r.Method) {
		return nil, false
	}
	again := r.WithContext(r.Context()) // a copy
	if r.Body == nil || r.Body == http.NoBody {
		return again, true
	}
	if r.GetBody == nil {
		return nil, false
	}
	body, err := r.GetBody()
	again.Body = body
	return again, err == nil
}

// told returns how many more requests a response allows, and for how long.
func told(r *http.Response, now time.Time) (left int64, wait time.Duration, ok bool) {
	if isDenial(r) {
		if wait, ok := delay(r.Header.Get("Retry-After"), now); ok {
			return 0, wait, true
		}
	}
	for r, t := range rateLimits(r.Header["Ratelimit"]) {
		if !ok || r < left || (r == left && t > wait) {
			left, wait, ok = r, t, true
		}
	}
	if ok {
		return left, wait, true
	}
	left, err := strconv.ParseInt(r.Header.Get("X-Ratelimit-Remaining"), 10, 64)
	wait, ok = instant(r.Header.Get("X-Ratelimit-Reset"), now)
	return left, wait, ok && err == nil
}

// longestWait replaces longer waits, which would overflow. No one waits that long.
const longestWait = 1 << 40 * time.Microsecond

func ofSeconds(n int64) time.Duration {
	return time.Duration(min(n, int64(longestWait/time.Second))) * time.Second
}

// delay parses Retry-After: seconds, or a date.
func delay(text string, now time.Time) (time.Duration, bool) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 {
		return ofSeconds(n), true
	}
	at, err := http.ParseTime(text)
	return max(min(at.Sub(now), longestWait), 0), err == nil
}

// instant parses X-RateLimit-Reset: seconds from now, or since 1970. Only the size of the
// number tells which.
func instant(text string, now time.Time) (time.Duration, bool) {
	const recent = 5e8
	n, err := strconv.ParseInt(text, 10, 64)
	if n >= recent {
		n = max(n-now.Unix(), 0)
	}
	return ofSeconds(n), err == nil && n >= 0
}

// rateLimits iterates over the r and t of the items of RateLimit that have both, up to
// the first item that cannot be parsed.
func rateLimits(lines []string) iter.Seq2[int64, time.Duration] {
	return func(yield func(int64, time.Duration) bool) {
		for rest, more := strings.Join(lines, ","), true; more; {
			item, after, ok := cutItem(strings.TrimLeft(rest, " \t"))
			if !ok || !strings.HasPrefix(item, `"`) {
				return
			}
			left, during := int64(-1), time.Duration(-1)
			for rest = after; strings.HasPrefix(rest, ";"); {
				var name, value string
				if name, value, rest, ok = cutParameter(rest[1:]); !ok {
					return
				}
				switch n, err := strconv.ParseInt(value, 10, 64); {
				case err != nil:
				case name == "r":
					left = n
				case name == "t" && n >= 0:
					during = ofSeconds(n)
				}
			}
			if left >= 0 && during >= 0 && !yield(left, during) {
				return
			}
			rest, more = strings.CutPrefix(strings.TrimLeft(rest, " \t"), ",")
		}
	}
}

// cutParameter parses a parameter, and its value, if it has one.
func cutParameter(s string) (name, value, rest string, ok bool) {
	s = strings.TrimLeft(s, " ")
	end := strings.IndexAny(s, "=;, \t")
	if end < 0 {
		return s, "", "", true
	}
	if name, rest = s[:end], s[end:]; rest[0] != '=' {
		return name, "", rest, true
	}
	value, rest, ok = cutItem(rest[1:])
	return name, value, rest, ok
}

// cutItem parses an item of structured fields: a string, bytes, or anything without
// separators.
func cutItem(s string) (item, rest string, ok bool) {
	end := strings.IndexAny(s, ";, \t")
	switch {
	case strings.HasPrefix(s, `"`):
		for end = 1; end < len(s) && s[end] != '"'; end++ {
			if s[end] == '\\' {
				end++
			}
		}
		end++
	case strings.HasPrefix(s, ":"):
		end = strings.IndexByte(s[1:], ':') + 2 // if there is none, the rest is no parameter
	case end < 0:
		end = len(s)
	}
	if end > len(s) {
		return "", "", false
	}
	return s[:end], s[end:], true
}
