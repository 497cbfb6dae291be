package httplimit

import (
	"context"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/door/settle"
)

// check is a request that a caller describes, and the verdict on it.
type check struct {
	request engine.Request
	subject identity.Subject
	named   bool // the caller says who is asking
	peek    bool

	verdict engine.Verdict
	err     error
}

var checkFields = []string{"method", "path", "ip", "user", "tenant", "api_key", "tier", "headers", "cost", "peek"}

// check reads the description of a request.
func (s *scanner) check(c *check) *inputError {
	c.request.Method = http.MethodGet
	if err := s.object(checkFields, func(i int) *inputError { return s.checkField(c, checkFields[i]) }); err != nil {
		return err
	}
	return c.complete()
}

func (s *scanner) checkField(c *check, name string) (err *inputError) {
	q := &c.request
	switch name {
	case "method":
		q.Method, err = s.method()
	case "path":
		q.Path, err = s.path()
	case "ip":
		q.Peer, err = s.address()
	case "user":
		c.subject.User, err = s.id()
	case "tenant":
		c.subject.Tenant, err = s.id()
	case "api_key":
		c.subject.Key, err = s.id()
	case "tier":
		c.subject.Tier, err = s.id()
	case "headers":
		q.Headers, err = s.headers()
	case "cost":
		q.Cost, err = s.cost(1)
	case "peek":
		c.peek, err = s.boolean()
	}
	return err
}

// complete checks that the request has a path. If the caller does not say who is asking, headers and address
// do.
func (c *check) complete() *inputError {
	if c.request.Path == "" {
		return &inputError{"path", "want the path of the request, such as /search"}
	}
	who := &c.subject
	c.named = who.User != "" || who.Tenant != "" || who.Key != "" || who.Tier != ""
	if c.named {
		who.IP = c.request.Peer
	}
	return nil
}

func (s *scanner) method() (string, *inputError) {
	start := s.i
	text, err := s.text()
	if err != nil {
		return "", err
	}
	method := string(text)
	if !settle.ValidMethod(method) {
		return "", s.wrong(start, settle.WantMethod)
	}
	return method, nil
}

func (s *scanner) path() (string, *inputError) {
	start := s.i
	text, err := s.text()
	if err == nil && (len(text) == 0 || text[0] != '/') {
		err = s.wrong(start, settle.WantPath)
	}
	return string(text), err
}

func (s *scanner) address() (netip.Addr, *inputError) {
	start := s.i
	text, err := s.text()
	if err != nil || len(text) == 0 {
		return netip.Addr{}, err
	}
	a, bad := netip.ParseAddr(string(text))
	if bad != nil {
		return a, s.wrong(start, settle.WantAddress)
	}
	return a, nil
}

// id reads the id of a user, tenant, key or tier. It may be empty, which means none.
func (s *scanner) id() (string, *inputError) {
	start := s.i
	text, err := s.text()
	if err != nil {
		return "", err
	}
	id := string(text)
	if id != "" && !identity.ValidID(id) {
		return "", s.wrong(start, settle.WantID)
	}
	return id, nil
}

// decide decides the request, or peeks.
func (a *api) decide(ctx context.Context, c *check) {
	if c.named {
		c.request.Subject = &c.subject
	}
	if c.peek {
		c.verdict, c.err = a.Engine.Peek(ctx, c.request)
	} else {
		c.err = a.Engine.DecideInto(ctx, &c.request, &c.verdict)
	}
}

func (a *api) check(w http.ResponseWriter, r *http.Request) {
	b := scratches.Get().(*scratch)
	defer b.release()
	if !b.read(w, r, maxBody) {
		return
	}
	s, c := scanner{data: b.in.Bytes()}, b.add()
	if err := s.document(func() *inputError { return s.check(c) }); err != nil {
		badRequest(w, r, err)
		return
	}
	switch a.decide(r.Context(), c); {
	case tooLong(c.err):
		badRequest(w, r, c.err)
		return
	case c.err != nil:
		a.failed(w, r, c.err)
		return
	}
	a.Headers.Set(w.Header(), &c.verdict)
	b.out = appendVerdict(b.out, &c.verdict)
	b.write(w)
}

// batch decides several requests at once: a store over a network answers many as fast
// as one.
func (a *api) batch(w http.ResponseWriter, r *http.Request) {
	b := scratches.Get().(*scratch)
	defer b.release()
	if !b.read(w, r, maxBatch) {
		return
	}
	s := scanner{data: b.in.Bytes()}
	if err := s.requests(func() *inputError { return s.check(b.add()) }); err != nil {
		badRequest(w, r, err)
		return
	}
	a.each(len(b.checks), func(i int) { a.decide(r.Context(), &b.checks[i]) })
	b.out = append(b.out, `{"verdicts":[`...)
	for i := range b.checks {
		if i > 0 {
			b.out = append(b.out, ',')
		}
		if c := &b.checks[i]; c.err != nil {
			p := undecidedProblem(c.err)
			b.out = p.append(b.out)
		} else {
			b.out = appendVerdict(b.out, &c.verdict)
		}
	}
	b.out = append(b.out, `]}`...)
	b.write(w)
}

// requests reads the requests of a batch, and calls one to read each.
func (s *scanner) requests(one func() *inputError) *inputError {
	n := 0
	err := s.document(func() *inputError {
		return s.object([]string{"requests"}, func(int) *inputError {
			return s.array(maxRequests, func() *inputError {
				n++
				return one()
			})
		})
	})
	if err == nil && n == 0 {
		err = &inputError{"requests", "want at least one request"}
	}
	return err
}

// each calls do for each of n decisions, in several goroutines if decisions take long, as over a
// network. In memory, starting goroutines would take longer than deciding.
func (a *api) each(n int, do func(i int)) {
	const (
		maxGoroutines = 16
		slowDecision  = 5 * time.Microsecond // longer than in memory, and shorter than over a network
	)
	var next atomic.Int64
	decide := func() {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			do(i)
		}
	}
	delay := time.Millisecond
	if a.slow.Load() {
		delay = 0
	}
	var helpers sync.WaitGroup
	started := make(chan struct{})
	timer := time.AfterFunc(delay, func() {
		defer close(started)
		for range min(n, maxGoroutines) - 1 {
			helpers.Go(decide)
		}
	})
	defer func() { // even after a panic, since the checks are reused
		if !timer.Stop() {
			<-started
		}
		helpers.Wait()
	}()
	began := time.Now()
	decide()
	a.slow.Store(time.Since(began) > time.Duration(n)*slowDecision)
}
