// Package doctor looks at the Redis servers of a store for what would make it fail,
// forget limits or be slow, and says what to do about it:
//
//	findings, err := doctor.Examine(ctx, store)
//
// docs/redis-doctor.md lists the checks. Nothing in Redis is changed.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/redisstore"
)

// Severity is how much a [Finding] matters; greater is worse.
type Severity uint8

const (
	// OK is as it should be.
	OK Severity = iota
	// Info is good to know, and nothing needs to be done.
	Info
	// Warning is what costs time now, or counts when something else fails.
	Warning
	// Problem is what makes calls fail or limits be forgotten, now or as soon as
	// memory is full.
	Problem
)

var severityNames = [...]string{OK: "ok", Info: "info", Warning: "warning", Problem: "problem"}

// String returns the severity's name.
func (v Severity) String() string {
	if int(v) >= len(severityNames) {
		return "severity(" + strconv.Itoa(int(v)) + ")"
	}
	return severityNames[v]
}

// MarshalText implements [encoding.TextMarshaler].
func (v Severity) MarshalText() ([]byte, error) {
	text := []byte(v.String())
	return text, new(Severity).UnmarshalText(text)
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (v *Severity) UnmarshalText(text []byte) error {
	i := slices.Index(severityNames[:], string(text))
	if i < 0 {
		return &stint.InvalidError{Field: "severity", Value: string(text), Want: strings.Join(severityNames[:], ", ")}
	}
	*v = Severity(i)
	return nil
}

// Finding is what [Examine] found in one place.
type Finding struct {
	Server   string   `json:"server,omitempty"` // host:port; empty: all of them together
	Severity Severity `json:"severity"`
	Check    string   `json:"check"`            // what was looked at; the names do not change
	Found    string   `json:"found"`            // what is the case
	Advice   string   `json:"advice,omitempty"` // what to do about it
}

// Examine looks at all servers that the store uses, replicas and sentinels included.
// What is as it should be is a finding too, of severity [OK]. The worst come first.
//
// A server that cannot be reached, or a command that is not allowed, is a finding. The
// only errors are that the store is closed and that ctx is done. Examine connects to
// each server anew; for health checks, use [redisstore.Store.Ping].
func Examine(ctx context.Context, store *redisstore.Store) ([]Finding, error) {
	p := &patient{Access: store.Access()}
	servers, out := p.servers(ctx)
	each(servers, func(s *server) { s.run(ctx) })
	for _, s := range servers {
		out = append(out, s.findings...)
	}
	err := store.Ping(ctx)
	switch {
	case errors.Is(err, stint.ErrClosed):
		return nil, err
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	out = append(out, script(err))
	out = append(out, compareClocks(servers)...)
	slices.SortStableFunc(out, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(a.Server, b.Server), cmp.Compare(a.Check, b.Check))
	})
	return out, nil
}

// each runs f for all of them, several at once.
func each[T any](list []T, f func(T)) {
	var wg sync.WaitGroup
	places := make(chan struct{}, 16)
	for _, v := range list {
		places <- struct{}{}
		wg.Go(func() {
			f(v)
			<-places
		})
	}
	wg.Wait()
}

// script says whether decisions can be made over the store's own connections, given
// what pinging it returned.
func script(err error) Finding {
	if err == nil {
		return Finding{Check: "script", Found: "the script runs"}
	}
	return Finding{
		Check: "script", Severity: Problem, Found: "the script does not run: " + err.Error(),
		Advice: "see the findings about the servers; docs/redis.md lists what the script needs",
	}
}

// compareClocks compares the servers' clocks.
func compareClocks(servers []*server) []Finding {
	servers = slices.DeleteFunc(slices.Clone(servers), func(s *server) bool { return !s.timed })
	if len(servers) < 2 {
		return nil
	}
	byClock := func(a, b *server) int { return cmp.Compare(a.ahead, b.ahead) }
	first, last := slices.MaxFunc(servers, byClock), slices.MinFunc(servers, byClock)
	skew := first.ahead - last.ahead
	if skew-first.slack-last.slack <= maxSkew {
		return []Finding{{Check: "clock", Found: fmt.Sprintf("the servers' clocks agree to %v", round(skew))}}
	}
	return []Finding{{
		Check: "clock", Severity: Warning,
		Found:  fmt.Sprintf("the clock of %s is %v ahead of that of %s: after a failover windows would end so much earlier or later", first.addr, round(skew), last.addr),
		Advice: "run chrony or another NTP client on all servers",
	}}
}

const slots = 16384 // of a Redis Cluster

// errAnswer is an answer that Redis does not give.
var errAnswer = errors.New("the answer is not one that Redis gives; is something else behind the URL, or in between?")

const (
	maxSkew   = time.Second
	maxTrip   = 5 * time.Millisecond
	maxUsed   = 80 // percent of maxmemory
	unlimited = "maxmemory is 0, no limit"
)

func round(d time.Duration) time.Duration {
	if d.Abs() < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(10 * time.Millisecond)
}

// role is what the store uses a server for.
type role uint8

const (
	asPrimary  role = iota + 1 // it counts
	asReplica                  // it stands by
	asSentinel                 // it knows the others
)

// patient is the store whose servers are examined.
type patient struct{ redisstore.Access }

// server is one of them, and what is known about it.
type server struct {
	*patient
	addr   string
	role   role
	client rueidis.Client
	err    error // why it could not be asked about the other servers

	info, conf       map[string]string
	infoErr, confErr error

	timed        bool          // ahead and slack are known
	ahead, slack time.Duration // how far its clock is ahead of this machine's, and the error of that

	findings []Finding
}

// timeout is how long to wait for an answer: a doctor has at least this much patience.
func (p *patient) timeout() time.Duration { return max(p.Timeout, time.Second) }

func (p *patient) isSingle() bool { return !p.Sentinel && !p.Cluster }

// dial connects to the server. The store's own client has no connections to the
// replicas of a sentinel's primary, and none at all if it cannot be made.
func (s *server) dial() error {
	client, err := s.Dial(s.addr, s.role == asSentinel, s.timeout())
	if err == nil { // otherwise it may be one that never connects
		s.client = client
	}
	return err
}

func (s *server) do(ctx context.Context, args ...string) rueidis.RedisResult {
	return s.doAll(ctx, args)[0]
}

func (s *server) doAll(ctx context.Context, all ...[]string) []rueidis.RedisResult {
	ctx, cancel := context.WithTimeout(ctx, s.timeout())
	defer cancel()
	commands := make([]rueidis.Completed, len(all))
	for i, args := range all {
		commands[i] = s.client.B().Arbitrary(args...).Build()
	}
	return s.client.DoMulti(ctx, commands...)
}

// say notes findings of a check.
func (s *server) say(check string, findings ...Finding) {
	for _, f := range findings {
		f.Server, f.Check = s.addr, check
		s.findings = append(s.findings, f)
	}
}

// problem is the severity of what makes the server useless. Of one that only
// stands by nobody notices until it takes over.
func (s *server) problem() Severity {
	if s.role == asPrimary {
		return Problem
	}
	return Warning
}

// lost notes that the server cannot be reached.
func (s *server) lost(err error) {
	f := Finding{
		Severity: s.problem(), Found: "cannot be reached: " + err.Error(),
		Advice: "see whether it runs, and whether this machine may connect to it",
	}
	if reply, ok := rueidis.IsRedisErr(err); ok {
		f.Found = "refuses the connection: " + reply.Error()
		f.Advice = "see the user, password and database in the URL, and ACL LIST on the server"
	}
	s.say("reach", f)
}

// run makes all checks.
func (s *server) run(ctx context.Context) {
	if err := s.dial(); err != nil {
		s.lost(err)
		return
	}
	defer s.client.Close()
	s.read(ctx)
	for _, c := range checks {
		if c.counters && s.role != asPrimary {
			continue
		}
		err := error(nil)
		var found []Finding
		if c.info {
			err = s.infoErr
		}
		if err == nil {
			found, err = c.look(s, ctx)
		}
		reply, ok := rueidis.IsRedisErr(err)
		if err != nil && !ok {
			s.lost(err)
			return
		}
		if ok {
			found = append(found, s.refused(reply.Error(), c.needs))
		}
		s.say(c.name, found...)
	}
	s.say("reach", Finding{Found: "answers"})
}

// refused is the finding that a check could not look.
func (s *server) refused(reply, needs string) Finding {
	if denied(reply) || strings.Contains(reply, "unknown command") {
		return Finding{
			Severity: Info, Found: "not allowed to look: " + reply,
			Advice: "ACL SETUSER " + s.user() + " " + needs + ", to have it checked",
		}
	}
	return Finding{Severity: Warning, Found: "cannot look: " + reply, Advice: "ask again when the server is well"}
}

func denied(reply string) bool { return strings.HasPrefix(reply, "NOPERM") }

func (s *server) user() string { return cmp.Or(s.User, "default") }

// read reads what several checks look at.
func (s *server) read(ctx context.Context) {
	text, err := s.do(ctx, "INFO").ToString()
	s.info, s.infoErr = fields(text), err
	s.conf = map[string]string{}
	// One by one: before Redis 7 it takes no more.
	for _, name := range []string{"save", "appendfsync", "stop-writes-on-bgsave-error", "min-replicas-to-write"} {
		m, err := s.do(ctx, "CONFIG", "GET", name).AsStrMap()
		if err != nil {
			s.confErr = err
			return
		}
		s.conf[name] = m[name]
	}
}

// fields reads the lines of INFO and CLUSTER INFO. The client leaves the mark of
// plain text before them.
func fields(text string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(strings.TrimPrefix(text, "txt:")) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			m[name] = value
		}
	}
	return m
}

// servers returns the servers that the store uses, and what was found on the way
// to them.
func (p *patient) servers(ctx context.Context) (servers []*server, out []Finding) {
	known := map[string]role{p.Addrs[0]: asPrimary}
	switch {
	case p.Sentinel:
		known, out = p.watched(ctx)
	case p.Cluster:
		known = p.members(ctx)
	}
	for addr, d := range known {
		servers = append(servers, &server{patient: p, addr: addr, role: d})
	}
	return servers, out
}

// watched asks the sentinels for the servers.
func (p *patient) watched(ctx context.Context) (known map[string]role, out []Finding) {
	known, seeds := p.ask(ctx, asSentinel, (*server).watches)
	for _, s := range seeds {
		if reply, ok := rueidis.IsRedisErr(s.err); ok && s.client != nil {
			s.say("sentinel", s.refused(reply.Error(), "+sentinel"))
		} else if s.err != nil {
			s.lost(s.err)
		}
		out = append(out, s.findings...)
	}
	if len(known) == 0 {
		out = append(out, Finding{
			Severity: Problem, Check: "sentinel", Found: "no sentinel names a primary called " + p.Primary,
			Advice: "see the name in the URL, and SENTINEL MASTERS on a sentinel",
		})
	}
	return known, out
}

// members asks the cluster's servers for all of them. One that does not know is
// looked at itself: it may be no cluster's.
func (p *patient) members(ctx context.Context) map[string]role {
	known, seeds := p.ask(ctx, asPrimary, (*server).peers)
	d := asPrimary
	if len(known) > 0 {
		d = asReplica // the store can do without it
	}
	for _, s := range seeds {
		if s.err != nil && known[s.addr] == 0 {
			known[s.addr] = d
		}
	}
	return known
}

// ask asks all servers of the URL for others.
func (p *patient) ask(ctx context.Context, d role, about func(*server, context.Context) (map[string]role, error)) (known map[string]role, seeds []*server) {
	for _, addr := range p.Addrs {
		seeds = append(seeds, &server{patient: p, addr: addr, role: d})
	}
	known = map[string]role{}
	var mu sync.Mutex
	each(seeds, func(s *server) {
		if s.err = s.dial(); s.err != nil {
			return
		}
		defer s.client.Close()
		var servers map[string]role
		servers, s.err = about(s, ctx)
		mu.Lock()
		defer mu.Unlock()
		for addr, d := range servers {
			if known[addr] != asPrimary { // others may not have heard yet
				known[addr] = d
			}
		}
	})
	return known, seeds
}

// watches returns the servers that a sentinel watches.
func (s *server) watches(ctx context.Context) (map[string]role, error) {
	name := s.Primary
	at, err := s.do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", name).AsStrSlice()
	if rueidis.IsRedisNil(err) || err == nil && len(at) != 2 {
		s.say("sentinel", Finding{
			Severity: Problem, Found: "knows no primary called " + name,
			Advice: "see the name in the URL, and SENTINEL MASTERS here",
		})
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	primary := net.JoinHostPort(at[0], at[1])
	known := map[string]role{primary: asPrimary}
	replicas, err := s.do(ctx, "SENTINEL", "REPLICAS", name).ToArray()
	for _, r := range replicas {
		if m, err := r.AsStrMap(); err == nil {
			known[net.JoinHostPort(m["ip"], m["port"])] = asReplica
		}
	}
	s.say("sentinel", Finding{Found: fmt.Sprintf("names %s the primary, with %d replicas", primary, len(replicas))})
	return known, err
}

// peers returns the members of a cluster that one of them knows. CLUSTER SLOTS has
// the addresses that the store uses; only CLUSTER NODES, which not every user
// may ask, has those that are down.
func (s *server) peers(ctx context.Context) (map[string]role, error) {
	ranges, err := s.do(ctx, "CLUSTER", "SLOTS").ToArray()
	if err != nil {
		return nil, err
	}
	known, ids := map[string]role{}, map[string]bool{}
	for _, r := range ranges {
		parts, _ := r.ToArray() // first, last, primary, replicas
		for i, part := range parts[min(2, len(parts)):] {
			n, err := part.ToArray()
			if err != nil || len(n) < 3 {
				return nil, errAnswer
			}
			host, _ := n[0].ToString() // nil: that of whom we ask
			port, _ := n[1].AsInt64()
			id, _ := n[2].ToString()
			addr := s.address(host, strconv.FormatInt(port, 10))
			if ids[id] = true; i == 0 {
				known[addr] = asPrimary
			} else if known[addr] == 0 {
				known[addr] = asReplica
			}
		}
	}
	nodes, _ := s.do(ctx, "CLUSTER", "NODES").ToString()
	for line := range strings.Lines(strings.TrimPrefix(nodes, "txt:")) {
		// id, host:port@bus, flags, and what does not matter here
		f := strings.Fields(line)
		if len(f) < 3 || ids[f[0]] || strings.Contains(f[2], "noaddr") {
			continue
		}
		at, _, _ := strings.Cut(f[1], "@")
		if i := strings.LastIndexByte(at, ':'); i >= 0 {
			known[s.address(at[:i], at[i+1:])] = asReplica
		}
	}
	return known, nil
}

// address returns an address as the server gives it. Without a host it is on the
// server's own.
func (s *server) address(host, port string) string {
	if host == "" {
		host, _, _ = net.SplitHostPort(s.addr)
	}
	return net.JoinHostPort(host, port)
}
