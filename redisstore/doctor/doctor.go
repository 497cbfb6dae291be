// Package doctor examines the Redis servers of a store. It finds what would make the store fail, lose
// counters or be slow, and says how to fix it:
//
//	findings, err := doctor.Examine(ctx, store)
//
// docs/redis-doctor.md lists the checks. Nothing in Redis is changed, except that each server with counters
// is asked for a decision, about a counter that expires within two seconds.
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
	// OK means that nothing is wrong.
	OK Severity = iota
	// Info is good to know, but needs no action.
	Info
	// Warning means that calls are slow, or that a failure elsewhere will have consequences.
	Warning
	// Problem means that calls fail or counters are lost, now or as soon as memory is full.
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

// Finding is one result of [Examine].
type Finding struct {
	Server   string   `json:"server,omitempty"` // host:port; empty: all servers
	Severity Severity `json:"severity"`
	Check    string   `json:"check"`            // the name of the check, which is stable
	Found    string   `json:"found"`            // what was found
	Advice   string   `json:"advice,omitempty"` // what to do about it
}

// Examine examines all servers that the store uses, including replicas and sentinels. The most severe
// findings come first. A check that finds nothing wrong has a finding of severity [OK].
//
// A server that cannot be reached, or a command that is not allowed, is a finding. Examine returns an
// error only if the store is closed or ctx is done. It opens new connections to every server; for
// health checks, use [redisstore.Store.PingServer].
func Examine(ctx context.Context, store *redisstore.Store) ([]Finding, error) {
	p := &patient{Access: store.Access()}
	servers, out := p.servers(ctx)
	each(servers, func(s *server) { s.run(ctx) })
	for _, s := range servers {
		out = append(out, s.findings...)
	}
	for _, name := range store.Servers() {
		err := store.PingServer(ctx, name)
		switch {
		case errors.Is(err, stint.ErrClosed):
			return nil, err
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
		out = append(out, scriptFinding(name, err))
	}
	out = append(out, compareClocks(servers)...)
	out = append(out, p.ringFindings(servers)...)
	slices.SortStableFunc(out, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(a.Server, b.Server), cmp.Compare(a.Check, b.Check))
	})
	return out, nil
}

// each runs f for all elements, up to 16 at a time.
func each[T any](list []T, f func(T)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	for _, v := range list {
		slots <- struct{}{}
		wg.Go(func() {
			f(v)
			<-slots
		})
	}
	wg.Wait()
}

// scriptFinding says whether a server makes decisions. err is what its ping returned.
func scriptFinding(server string, err error) Finding {
	if err == nil {
		return Finding{Server: server, Check: "script", Found: "the script runs, and can write"}
	}
	return Finding{
		Server: server, Check: "script", Severity: Problem, Found: "the script does not run: " + err.Error(),
		Advice: "check the findings about the servers; docs/redis.md lists what the script needs",
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
		Found:  fmt.Sprintf("the clock of %s is %v ahead of that of %s: after a failover, or a change of a ring, windows would end that much earlier or later", first.addr, round(skew), last.addr),
		Advice: "run chrony or another NTP client on all servers",
	}}
}

// errAnswer means that Redis did not send this reply.
var errAnswer = errors.New("unexpected reply; does the URL point to Redis, with no other server in between?")

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
	asPrimary role = iota + 1
	asReplica
	asSentinel
)

// patient is the store whose servers are examined.
type patient struct{ redisstore.Access }

// server is one server of the store, and what is known about it.
type server struct {
	*patient
	addr   string
	role   role
	client rueidis.Client
	err    error // why it could not be asked about the other servers

	info, conf       map[string]string
	infoErr, confErr error

	timed        bool          // ahead and slack are known
	ahead, slack time.Duration // how far its clock is ahead of this machine's, and the margin of error

	findings []Finding
}

// timeout is how long to wait for a reply. It is at least a second, so that slow servers are examined too.
func (p *patient) timeout() time.Duration { return max(p.Timeout, time.Second) }

// isSingle reports whether no other server would take over.
func (p *patient) isSingle() bool { return !p.Sentinel && !p.Cluster }

// dial connects to the server. The store's client is not used: it does not connect to replicas behind
// sentinels, and may not be connected at all.
func (s *server) dial() error {
	client, err := s.Dial(s.addr, s.role == asSentinel, s.timeout())
	if err == nil { // otherwise the client may not be nil, but cannot be used
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

// report adds findings of a check.
func (s *server) report(check string, findings ...Finding) {
	for _, f := range findings {
		f.Server, f.Check = s.addr, check
		s.findings = append(s.findings, f)
	}
}

// problem is the severity of what makes the server unusable. On a replica that does no harm until it
// takes over.
func (s *server) problem() Severity {
	if s.role == asPrimary {
		return Problem
	}
	return Warning
}

// unreachable reports that the server cannot be reached.
func (s *server) unreachable(err error) {
	f := Finding{
		Severity: s.problem(), Found: "cannot be reached: " + err.Error(),
		Advice: "check that it is running, and that this machine can connect to it",
	}
	if reply, ok := rueidis.IsRedisErr(err); ok {
		f.Found = "rejects the connection: " + reply.Error()
		f.Advice = "check the user, password and database in the URL, and ACL LIST on the server"
	}
	s.report("reach", f)
}

// run runs all checks.
func (s *server) run(ctx context.Context) {
	if err := s.dial(); err != nil {
		s.unreachable(err)
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
			found, err = c.run(s, ctx)
		}
		reply, ok := rueidis.IsRedisErr(err)
		if err != nil && !ok {
			s.unreachable(err)
			return
		}
		if ok {
			found = append(found, s.refused(reply.Error(), c.needs))
		}
		s.report(c.name, found...)
	}
	s.report("reach", Finding{Found: "answers"})
}

// refused returns the finding for a check that Redis rejected.
func (s *server) refused(reply, needs string) Finding {
	if denied(reply) || strings.Contains(reply, "unknown command") {
		return Finding{
			Severity: Info, Found: "not allowed to check: " + reply,
			Advice: "ACL SETUSER " + s.user() + " " + needs + ", to allow this check",
		}
	}
	return Finding{Severity: Warning, Found: "cannot check: " + reply, Advice: "check again when the server is healthy"}
}

func denied(reply string) bool { return strings.HasPrefix(reply, "NOPERM") }

func (s *server) user() string { return cmp.Or(s.User, "default") }

// read reads INFO and CONFIG, which several checks use.
func (s *server) read(ctx context.Context) {
	text, err := s.do(ctx, "INFO").ToString()
	s.info, s.infoErr = fields(text), err
	s.conf = map[string]string{}
	// One by one: before Redis 7, CONFIG GET accepts only one name.
	for _, name := range []string{"save", "appendfsync", "stop-writes-on-bgsave-error", "min-replicas-to-write", "cluster-require-full-coverage"} {
		m, err := s.do(ctx, "CONFIG", "GET", name).AsStrMap()
		if err != nil {
			s.confErr = err
			return
		}
		s.conf[name] = m[name]
	}
}

// fields parses the reply to INFO or CLUSTER INFO. The client does not remove the "txt:" in front of it.
func fields(text string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(strings.TrimPrefix(text, "txt:")) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			m[name] = value
		}
	}
	return m
}

// servers returns the servers that the store uses, and findings from discovering them.
func (p *patient) servers(ctx context.Context) (servers []*server, out []Finding) {
	known := map[string]role{}
	switch {
	case p.Sentinel:
		known, out = p.sentinelServers(ctx)
	case p.Cluster:
		known = p.clusterServers(ctx)
	default:
		for _, addr := range p.Addrs { // one, or those of a ring
			known[addr] = asPrimary
		}
	}
	for addr, r := range known {
		servers = append(servers, &server{patient: p, addr: addr, role: r})
	}
	slices.SortFunc(servers, func(a, b *server) int { return cmp.Compare(a.addr, b.addr) })
	return servers, out
}

// sentinelServers asks the sentinels for the servers.
func (p *patient) sentinelServers(ctx context.Context) (known map[string]role, out []Finding) {
	known, seeds := p.ask(ctx, asSentinel, (*server).monitored)
	for _, s := range seeds {
		if reply, ok := rueidis.IsRedisErr(s.err); ok && s.client != nil {
			s.report("sentinel", s.refused(reply.Error(), "+sentinel"))
		} else if s.err != nil {
			s.unreachable(s.err)
		}
		out = append(out, s.findings...)
	}
	if len(known) == 0 {
		out = append(out, Finding{
			Severity: Problem, Check: "sentinel", Found: "no sentinel names a primary called " + p.Primary,
			Advice: "check the name in the URL, and SENTINEL MASTERS on a sentinel",
		})
	}
	return known, out
}

// clusterServers asks the servers in the URL for all servers of the cluster. One that cannot tell is
// examined too: it may not be part of a cluster.
func (p *patient) clusterServers(ctx context.Context) map[string]role {
	known, seeds := p.ask(ctx, asPrimary, (*server).peers)
	r := asPrimary
	if len(known) > 0 {
		r = asReplica // the store does not need it
	}
	for _, s := range seeds {
		if s.err != nil && known[s.addr] == 0 {
			known[s.addr] = r
		}
	}
	return known
}

// ask asks all servers in the URL for other servers.
func (p *patient) ask(ctx context.Context, r role, about func(*server, context.Context) (map[string]role, error)) (known map[string]role, seeds []*server) {
	for _, addr := range p.Addrs {
		seeds = append(seeds, &server{patient: p, addr: addr, role: r})
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
		for addr, r := range servers {
			if known[addr] != asPrimary { // some may not have noticed a failover yet
				known[addr] = r
			}
		}
	})
	return known, seeds
}

// monitored returns the servers that a sentinel monitors.
func (s *server) monitored(ctx context.Context) (map[string]role, error) {
	name := s.Primary
	at, err := s.do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", name).AsStrSlice()
	if rueidis.IsRedisNil(err) || err == nil && len(at) != 2 {
		s.report("sentinel", Finding{
			Severity: Problem, Found: "knows no primary called " + name,
			Advice: "check the name in the URL, and SENTINEL MASTERS on this sentinel",
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
	s.report("sentinel", Finding{Found: fmt.Sprintf("names %s the primary, with %d replicas", primary, len(replicas))})
	return known, err
}

// peers returns the cluster's servers that this server knows. CLUSTER SLOTS has the addresses that the
// store uses. Only CLUSTER NODES, which the user may not be allowed to run, has servers that are down.
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
			host, _ := n[0].ToString() // nil: the same host as this server
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
		// id, host:port@bus, flags, and others
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

// address joins host and port. An empty host means the server's own.
func (s *server) address(host, port string) string {
	if host == "" {
		host, _, _ = net.SplitHostPort(s.addr)
	}
	return net.JoinHostPort(host, port)
}
