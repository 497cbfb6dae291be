package httplimit

import (
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

// Transport is for clients: a [http.RoundTripper] that keeps to the limits that
// servers tell. The zero value is ready for use, by several goroutines at once.
//
// Where a host has said, with RateLimit or X-RateLimit headers, that nothing is left,
// or with Retry-After, that it should be left alone, requests to it wait before they
// are sent; when the time is over, one of them finds out for the others. Requests that
// are refused with 429 or 503 are sent again, after as long as
// the server has said, or else after 1 s, 2 s, 4 s; a little is added to every wait, so
// that clients do not come back all at once. Sent again is what can be: a request
// without a body or with GetBody and, after a 503, only if it is idempotent.
//
// No request waits for longer than MaxWait in all, or until after its context's
// deadline: it is sent at once, or the refusal returned.
type Transport struct {
	// Base sends the requests. Default http.DefaultTransport.
	Base http.RoundTripper
	// MaxRetries is how often a request is sent again. Default 3; negative: never.
	MaxRetries int
	// MaxWait is how long a request waits, in all. Default 1 minute.
	MaxWait time.Duration

	mu    sync.Mutex
	hosts map[string]*allowance // at most maxHosts
}

// maxHosts is how many hosts a transport remembers. Beyond them, others are forgotten.
const maxHosts = 1024

// allowance is what a host has said.
type allowance struct {
	left    int64         // of what may be sent
	during  time.Duration // how long that is all; 0: it has not said
	until   time.Time     // when that is over
	flying  int64         // requests that are on their way, which the host may not have counted
	probing bool          // one of them finds out for the others
	changed chan struct{} // closed when those who wait should look again; nil: no one waits
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base, retries, patience := t.Base, t.MaxRetries, t.MaxWait
	if base == nil {
		base = http.DefaultTransport
	}
	if retries == 0 {
		retries = 3
	}
	if patience == 0 {
		patience = time.Minute
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
		if err != nil || !isRefusal(response) || try >= retries {
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
		const most = 64 << 10 // of an answer, so that the connection can be used again
		_, _ = io.CopyN(io.Discard, response.Body, most)
		_ = response.Body.Close()
		if err != nil {
			closeBody(again)
			return nil, err
		}
		r = again
	}
}

// closeBody closes the body of a request that is not sent, as every RoundTripper does.
func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close() // it has not been read
	}
}

// host returns what is known of a host.
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

// begin counts a request that is about to be sent or, if it is willing to wait,
// returns how long it has to before it asks again, unless something changes.
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
		a.during = 0 // what was said is over
	default:
		a.probing, a.until = true, now.Add(a.during)
	}
	a.left--
	a.flying++
	return 0, nil
}

// end remembers what the response to a request says, if there is one, and returns how
// long it says to wait, if it does.
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
		a.during = 0 // it no longer says
	default:
		a.left++ // it has not counted this one
	}
	a.probing = false
	if a.changed != nil && (a.left > 0 || a.during == 0) {
		close(a.changed)
		a.changed = nil
	}
	return wait, ok && left <= 0
}

// sleep waits, or until something has changed, if patience and the context's deadline
// allow it, and reports whether it has.
func sleep(ctx context.Context, wait time.Duration, changed <-chan struct{}, patience *time.Duration) (bool, error) {
	const most = 10 * time.Second
	wait += rand.N(min(wait, most)/10 + time.Millisecond)
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

func isRefusal(r *http.Response) bool {
	return r.StatusCode == http.StatusTooManyRequests || r.StatusCode == http.StatusServiceUnavailable
}

var idempotent = []string{
	http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete,
}

// replay returns the request to be sent again, if it can be. A 429 says that nothing
// has been done, and a 503 may come of something that has.
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

// told returns how much a response says is left, and for how long that is all.
func told(r *http.Response, now time.Time) (left int64, wait time.Duration, ok bool) {
	if isRefusal(r) {
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

// longestWait is what longer ones are taken for. No one waits for it.
const longestWait = 1 << 40 * time.Microsecond

func ofSeconds(n int64) time.Duration {
	return time.Duration(min(n, int64(longestWait/time.Second))) * time.Second
}

// delay reads seconds, or a date.
func delay(text string, now time.Time) (time.Duration, bool) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 {
		return ofSeconds(n), true
	}
	at, err := http.ParseTime(text)
	return max(min(at.Sub(now), longestWait), 0), err == nil
}

// instant reads seconds until an instant, or since 1970: there is no telling but by
// their size.
func instant(text string, now time.Time) (time.Duration, bool) {
	const recent = 5e8
	n, err := strconv.ParseInt(text, 10, 64)
	if n >= recent {
		n = max(n-now.Unix(), 0)
	}
	return ofSeconds(n), err == nil && n >= 0
}

// rateLimits are the r and t of the items of a RateLimit field that have both. A field
// that cannot be read ends where it cannot.
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

// cutParameter cuts a parameter off, and its value, if it has one.
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

// cutItem cuts a value of structured fields off: a string, bytes, or what has no
// separators in it.
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
		end = strings.IndexByte(s[1:], ':') + 2 // if there is none, what follows is no parameter
	case end < 0:
		end = len(s)
	}
	if end > len(s) {
		return "", "", false
	}
	return s[:end], s[end:], true
}
