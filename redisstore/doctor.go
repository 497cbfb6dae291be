package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/stintdev/stint"
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

// Finding is what [Store.Doctor] found in one place.
type Finding struct {
	Server   string   `json:"server,omitempty"` // host:port; empty: all of them together
	Severity Severity `json:"severity"`
	Check    string   `json:"check"`            // what was looked at; the names do not change
	Found    string   `json:"found"`            // what is the case
	Advice   string   `json:"advice,omitempty"` // what to do about it
}

// Doctor looks at all servers that the store uses, replicas and sentinels too,
// for what would make it fail, forget or lag; docs/redis-doctor.md lists the
// checks. What is as it should be is a finding as well, of severity [OK]. The
// worst come first.
//
// It changes nothing in Redis, and a server that cannot be reached, or a command
// that is not allowed, is a finding. The only errors are that the store is closed
// and that ctx is done. It connects to each server anew, so it is no call for a
// health check; that is [Store.Ping].
func (s *Store) Doctor(ctx context.Context) ([]Finding, error) {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.base, cancel)()

	servers, out := s.servers(inner)
	each(servers, func(e *exam) { e.run(inner) })
	for _, e := range servers {
		out = append(out, e.findings...)
	}
	out = append(out, s.runs(inner))
	out = append(out, compareClocks(servers)...)
	switch {
	case s.base.Err() != nil:
		return nil, stint.ErrClosed
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
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

// runs says whether decisions can be made, by the store's own connections.
func (s *Store) runs(ctx context.Context) Finding {
	err := s.Ping(ctx)
	if err == nil {
		return Finding{Check: "script", Found: "the script runs"}
	}
	return Finding{
		Check: "script", Severity: Problem, Found: "the script does not run: " + err.Error(),
		Advice: "see what is said of the servers; docs/redis.md lists what the script needs",
	}
}

// compareClocks compares the servers' clocks.
func compareClocks(servers []*exam) []Finding {
	servers = slices.DeleteFunc(slices.Clone(servers), func(e *exam) bool { return !e.timed })
	if len(servers) < 2 {
		return nil
	}
	byClock := func(a, b *exam) int { return cmp.Compare(a.ahead, b.ahead) }
	first, last := slices.MaxFunc(servers, byClock), slices.MinFunc(servers, byClock)
	skew := first.ahead - last.ahead
	if skew-first.slack-last.slack <= mostSkew {
		return []Finding{{Check: "clock", Found: fmt.Sprintf("the servers' clocks agree to %v", round(skew))}}
	}
	return []Finding{{
		Check: "clock", Severity: Warning,
		Found:  fmt.Sprintf("the clock of %s is %v ahead of that of %s: after a failover windows would end so much earlier or later", first.addr, round(skew), last.addr),
		Advice: "run chrony or another NTP client on all servers",
	}}
}

const (
	mostSkew  = time.Second
	mostTrip  = 5 * time.Millisecond
	mostUsed  = 80          // percent of maxmemory
	patience  = time.Second // for an answer, if the store itself has less
	unlimited = "maxmemory is 0, no limit"
)

func round(d time.Duration) time.Duration {
	if d.Abs() < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(10 * time.Millisecond)
}

// duty is what a server is there for.
type duty uint8

const (
	asPrimary  duty = iota + 1 // it counts
	asReplica                  // it stands by
	asSentinel                 // it knows the others
)

// exam is what is known of a server.
type exam struct {
	*Store
	addr   string
	duty   duty
	client rueidis.Client
	err    error // it does not know the others

	info, conf       map[string]string
	infoErr, confErr error

	timed        bool
	ahead, slack time.Duration // of this machine's clock, and how far off that may be

	findings []Finding
}

// dial connects to the server. The store's own client has no connections to the
// replicas of a sentinel's primary, and none at all if it cannot be made.
func (e *exam) dial() error {
	c := &e.config
	o := c.options()
	o.InitAddress, o.ForceSingleClient, o.PipelineMultiplex = []string{e.addr}, true, -1
	o.ConnWriteTimeout = max(c.timeout, patience)
	if e.duty == asSentinel {
		o.Username, o.Password, o.SelectDB = c.sentinelUser, c.sentinelPassword, 0
	}
	client, err := rueidis.NewClient(o)
	if err == nil { // otherwise it may be one that never connects
		e.client = client
	}
	return err
}

func (e *exam) do(ctx context.Context, args ...string) rueidis.RedisResult {
	return e.doAll(ctx, args)[0]
}

func (e *exam) doAll(ctx context.Context, all ...[]string) []rueidis.RedisResult {
	ctx, cancel := context.WithTimeout(ctx, max(e.config.timeout, patience))
	defer cancel()
	commands := make([]rueidis.Completed, len(all))
	for i, args := range all {
		commands[i] = e.client.B().Arbitrary(args...).Build()
	}
	return e.client.DoMulti(ctx, commands...)
}

// say notes findings of a check.
func (e *exam) say(check string, findings ...Finding) {
	for _, f := range findings {
		f.Server, f.Check = e.addr, check
		e.findings = append(e.findings, f)
	}
}

// problem is the severity of what makes the server useless. Of one that only
// stands by nobody notices until it takes over.
func (e *exam) problem() Severity {
	if e.duty == asPrimary {
		return Problem
	}
	return Warning
}

// lost notes that the server cannot be reached.
func (e *exam) lost(err error) {
	f := Finding{
		Severity: e.problem(), Found: "cannot be reached: " + err.Error(),
		Advice: "see whether it runs, and whether this machine may connect to it",
	}
	if reply, ok := rueidis.IsRedisErr(err); ok {
		f.Found = "refuses the connection: " + reply.Error()
		f.Advice = "see the user, password and database in the URL, and ACL LIST on the server"
	}
	e.say("reach", f)
}

// run makes all checks.
func (e *exam) run(ctx context.Context) {
	if err := e.dial(); err != nil {
		e.lost(err)
		return
	}
	defer e.client.Close()
	e.read(ctx)
	for _, c := range checks {
		if c.counters && e.duty != asPrimary {
			continue
		}
		err := error(nil)
		var found []Finding
		if c.info {
			err = e.infoErr
		}
		if err == nil {
			found, err = c.look(e, ctx)
		}
		reply, ok := rueidis.IsRedisErr(err)
		if err != nil && !ok {
			e.lost(err)
			return
		}
		if ok {
			found = append(found, e.refused(reply.Error(), c.needs))
		}
		e.say(c.name, found...)
	}
	e.say("reach", Finding{Found: "answers"})
}

// refused is the finding that a check could not look.
func (e *exam) refused(reply, needs string) Finding {
	if denied(reply) || strings.Contains(reply, "unknown command") {
		return Finding{
			Severity: Info, Found: "not allowed to look: " + reply,
			Advice: "ACL SETUSER " + e.user() + " " + needs + ", to have it checked",
		}
	}
	return Finding{Severity: Warning, Found: "cannot look: " + reply, Advice: "ask again when the server is well"}
}

func denied(reply string) bool { return strings.HasPrefix(reply, "NOPERM") }

func (e *exam) user() string { return cmp.Or(e.config.user, "default") }

// read reads what several checks look at.
func (e *exam) read(ctx context.Context) {
	text, err := e.do(ctx, "INFO").ToString()
	e.info, e.infoErr = fields(text), err
	e.conf = map[string]string{}
	// One by one: before Redis 7 it takes no more.
	for _, name := range []string{"save", "appendfsync", "stop-writes-on-bgsave-error", "min-replicas-to-write"} {
		m, err := e.do(ctx, "CONFIG", "GET", name).AsStrMap()
		if err != nil {
			e.confErr = err
			return
		}
		e.conf[name] = m[name]
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
func (s *Store) servers(ctx context.Context) (servers []*exam, out []Finding) {
	known := map[string]duty{s.config.addrs[0]: asPrimary}
	switch s.config.topology {
	case single:
	case sentinel:
		known, out = s.watched(ctx)
	case cluster:
		known = s.members(ctx)
	}
	for addr, d := range known {
		servers = append(servers, &exam{Store: s, addr: addr, duty: d})
	}
	return servers, out
}

// watched asks the sentinels for the servers.
func (s *Store) watched(ctx context.Context) (known map[string]duty, out []Finding) {
	known, seeds := s.ask(ctx, asSentinel, (*exam).watches)
	for _, e := range seeds {
		if reply, ok := rueidis.IsRedisErr(e.err); ok && e.client != nil {
			e.say("sentinel", e.refused(reply.Error(), "+sentinel"))
		} else if e.err != nil {
			e.lost(e.err)
		}
		out = append(out, e.findings...)
	}
	if len(known) == 0 {
		out = append(out, Finding{
			Severity: Problem, Check: "sentinel", Found: "no sentinel names a primary called " + s.config.primary,
			Advice: "see the name in the URL, and SENTINEL MASTERS on a sentinel",
		})
	}
	return known, out
}

// members asks the cluster's servers for all of them. One that does not know is
// looked at itself: it may be no cluster's.
func (s *Store) members(ctx context.Context) map[string]duty {
	known, seeds := s.ask(ctx, asPrimary, (*exam).peers)
	d := asPrimary
	if len(known) > 0 {
		d = asReplica // the store can do without it
	}
	for _, e := range seeds {
		if e.err != nil && known[e.addr] == 0 {
			known[e.addr] = d
		}
	}
	return known
}

// ask asks all servers of the URL for others.
func (s *Store) ask(ctx context.Context, d duty, about func(*exam, context.Context) (map[string]duty, error)) (known map[string]duty, seeds []*exam) {
	for _, addr := range s.config.addrs {
		seeds = append(seeds, &exam{Store: s, addr: addr, duty: d})
	}
	known = map[string]duty{}
	var mu sync.Mutex
	each(seeds, func(e *exam) {
		if e.err = e.dial(); e.err != nil {
			return
		}
		defer e.client.Close()
		var servers map[string]duty
		servers, e.err = about(e, ctx)
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
func (e *exam) watches(ctx context.Context) (map[string]duty, error) {
	name := e.config.primary
	at, err := e.do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", name).AsStrSlice()
	if rueidis.IsRedisNil(err) || err == nil && len(at) != 2 {
		e.say("sentinel", Finding{
			Severity: Problem, Found: "knows no primary called " + name,
			Advice: "see the name in the URL, and SENTINEL MASTERS here",
		})
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	primary := net.JoinHostPort(at[0], at[1])
	known := map[string]duty{primary: asPrimary}
	replicas, err := e.do(ctx, "SENTINEL", "REPLICAS", name).ToArray()
	for _, r := range replicas {
		if m, err := r.AsStrMap(); err == nil {
			known[net.JoinHostPort(m["ip"], m["port"])] = asReplica
		}
	}
	e.say("sentinel", Finding{Found: fmt.Sprintf("names %s the primary, with %d replicas", primary, len(replicas))})
	return known, err
}

// peers returns the members of a cluster that one of them knows. CLUSTER SLOTS has
// the addresses that the store uses; only CLUSTER NODES, which not every user
// may ask, has those that are down.
func (e *exam) peers(ctx context.Context) (map[string]duty, error) {
	ranges, err := e.do(ctx, "CLUSTER", "SLOTS").ToArray()
	if err != nil {
		return nil, err
	}
	known, ids := map[string]duty{}, map[string]bool{}
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
			addr := e.address(host, strconv.FormatInt(port, 10))
			if ids[id] = true; i == 0 {
				known[addr] = asPrimary
			} else if known[addr] == 0 {
				known[addr] = asReplica
			}
		}
	}
	nodes, _ := e.do(ctx, "CLUSTER", "NODES").ToString()
	for line := range strings.Lines(strings.TrimPrefix(nodes, "txt:")) {
		// id, host:port@bus, flags, and what does not matter here
		f := strings.Fields(line)
		if len(f) < 3 || ids[f[0]] || strings.Contains(f[2], "noaddr") {
			continue
		}
		at, _, _ := strings.Cut(f[1], "@")
		if i := strings.LastIndexByte(at, ':'); i >= 0 {
			known[e.address(at[:i], at[i+1:])] = asReplica
		}
	}
	return known, nil
}

// address returns an address as the server gives it. Without a host it is on the
// server's own.
func (e *exam) address(host, port string) string {
	if host == "" {
		host, _, _ = net.SplitHostPort(e.addr)
	}
	return net.JoinHostPort(host, port)
}
