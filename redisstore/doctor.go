package redisstore

import (
	"cmp"
	"context"
	"crypto/rand"
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

// checks are made in this order. Each finds something on every server, be it that
// all is well.
var checks = []struct {
	name     string
	needs    string // the ACL rules for what it asks
	info     bool   // whether it is nothing without INFO
	counters bool   // whether it is only for servers that count
	look     func(*exam, context.Context) ([]Finding, error)
}{
	{name: "version", needs: "+info", info: true, look: (*exam).version},
	{name: "role", needs: "+info", info: true, look: (*exam).role},
	{name: "eviction", needs: "+info", info: true, look: (*exam).eviction},
	{name: "memory", needs: "+info", info: true, look: (*exam).memory},
	{name: "persistence", needs: "+info +config|get", info: true, look: (*exam).persistence},
	{name: "replication", needs: "+info +config|get", info: true, look: (*exam).replication},
	{name: "cluster", needs: "+cluster|info +cluster|nodes", look: (*exam).cluster},
	{name: "clock", needs: "+time", look: (*exam).clock},
	{name: "latency", look: (*exam).latency},
	{name: "ttl", needs: "+scan +pttl", counters: true, look: (*exam).ttl},
	{name: "acl", look: (*exam).acl},
}

func (e *exam) version(context.Context) ([]Finding, error) {
	version := e.info["redis_version"] // Valkey has it too: the Redis that it is like
	f := Finding{Found: "Redis " + version}
	if v := e.info["valkey_version"]; v != "" {
		f.Found = "Valkey " + v
	}
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil || major < 6 || major == 6 && minor < 2 {
		f.Severity, f.Advice = Problem, "upgrade to Redis 6.2 or later, or to Valkey"
	}
	return []Finding{f}, nil
}

func (e *exam) role(context.Context) ([]Finding, error) {
	role := e.info["role"]
	f := Finding{Found: "role " + role}
	switch {
	case role == "slave" && e.duty == asPrimary && e.config.topology == single:
		f.Severity = Problem
		f.Found = "a replica of " + net.JoinHostPort(e.info["master_host"], e.info["master_port"]) + ", which refuses writes or loses them"
		f.Advice = "put the primary's address into the URL, or use redis+sentinel://"
	case role == "slave" && e.duty == asPrimary:
		f.Severity, f.Found, f.Advice = Problem, "a replica, though the others call it a primary", "wait for the failover to end, and ask again"
	case role == "master" && e.duty == asReplica:
		f.Severity, f.Found, f.Advice = Warning, "a primary, though the others do not count on it", "wait for the failover to end, and ask again"
	}
	return []Finding{f}, nil
}

func (e *exam) number(name string) int64 {
	n, _ := strconv.ParseInt(e.info[name], 10, 64)
	return n
}

func (e *exam) eviction(context.Context) ([]Finding, error) {
	policy := e.info["maxmemory_policy"]
	f := Finding{Found: fmt.Sprintf("maxmemory %s, maxmemory-policy %s", e.info["maxmemory"], policy)}
	switch {
	case e.number("maxmemory") == 0:
		f.Found = unlimited + ", so nothing is evicted"
	case strings.HasPrefix(policy, "allkeys-"):
		f.Severity = Problem
		f.Found += ": when memory is full, counters are dropped, and their limits start anew"
		f.Advice = "CONFIG SET maxmemory-policy noeviction, or volatile-ttl if other data without a time to live shares the server"
	case policy == "volatile-ttl":
		f.Severity = Warning
		f.Found += ": when memory is full, the counters nearest to recovery are dropped first, which does the least harm"
		f.Advice = "keep memory below maxmemory, or CONFIG SET maxmemory-policy noeviction"
	case strings.HasPrefix(policy, "volatile-"):
		f.Severity = Warning
		f.Found += ": when memory is full, counters are dropped, for all have a time to live"
		f.Advice = "CONFIG SET maxmemory-policy volatile-ttl, which drops those nearest to recovery first, or noeviction"
	default:
		f.Severity = Info
		f.Found += ": when memory is full, new counters are refused with OOM errors, and no limit is forgotten"
	}
	return []Finding{f}, nil
}

func (e *exam) memory(context.Context) ([]Finding, error) {
	used, limit := e.number("used_memory"), e.number("maxmemory")
	if limit == 0 {
		return []Finding{{Found: fmt.Sprintf("%d bytes used; %s", used, unlimited)}}, nil
	}
	percent := int64(float64(used) / float64(limit) * 100)
	f := Finding{Found: fmt.Sprintf("%d of %d bytes used, %d%%", used, limit, percent)}
	if percent > mostUsed {
		f.Severity = Warning
		f.Advice = fmt.Sprintf("CONFIG SET maxmemory %d, if the machine has it, or add servers", 2*limit)
	}
	return []Finding{f}, nil
}

func (e *exam) persistence(context.Context) ([]Finding, error) {
	var out []Finding
	aof := e.info["aof_enabled"] == "1"
	save, known := e.conf["save"]
	if e.info["aof_last_write_status"] == "err" {
		out = append(out, Finding{
			Severity: e.problem(), Found: "the last write to the append-only file failed (aof_last_write_status:err): writes are refused",
			Advice: "see the server's log; make room on its disk",
		})
	}
	if e.info["rdb_last_bgsave_status"] == "err" {
		f := Finding{
			Severity: e.problem(), Found: "the last snapshot failed (rdb_last_bgsave_status:err): writes are refused",
			Advice: "see the server's log; make room on its disk, then BGSAVE. CONFIG SET stop-writes-on-bgsave-error no lets writes pass meanwhile",
		}
		if known && save == "" || e.conf["stop-writes-on-bgsave-error"] == "no" {
			f.Severity, f.Found = Warning, "the last snapshot failed (rdb_last_bgsave_status:err)"
			f.Advice = "see the server's log; make room on its disk, then BGSAVE"
		}
		out = append(out, f)
	}
	switch {
	case aof && e.conf["appendfsync"] == "always":
		out = append(out, Finding{
			Severity: Warning, Found: "appendfsync always: every decision waits for the disk",
			Advice: "CONFIG SET appendfsync everysec",
		})
	case !aof && known && save == "":
		out = append(out, Finding{
			Severity: Info, Found: "neither snapshots nor an append-only file: after a restart all limits start anew",
			Advice: "if that matters, CONFIG SET appendonly yes, with appendfsync everysec",
		})
	}
	if len(out) == 0 && e.confErr == nil {
		out = append(out, Finding{Found: fmt.Sprintf("save %q, appendonly %t, appendfsync %s", save, aof, e.conf["appendfsync"])})
	}
	return out, e.confErr
}

func (e *exam) replication(context.Context) ([]Finding, error) {
	if e.info["role"] == "slave" {
		if e.info["master_link_status"] == "up" {
			return []Finding{{Found: "in step with its primary"}}, nil
		}
		return []Finding{{
			Severity: Warning, Found: "its link to the primary is down: what is counted meanwhile is lost if it takes over",
			Advice: "see its log, and whether it can reach " + net.JoinHostPort(e.info["master_host"], e.info["master_port"]),
		}}, nil
	}
	replicas := e.number("connected_slaves")
	f := Finding{Found: fmt.Sprintf("%d replicas", replicas)}
	if replicas == 0 && e.duty == asPrimary && e.config.topology != single {
		f.Severity = Warning
		f.Found = "no replica: if it fails, nothing takes over"
		f.Advice = "add one: REPLICAOF " + strings.Replace(e.addr, ":", " ", 1) + " on another server"
		if e.config.topology == cluster {
			f.Advice = "add one: redis-cli --cluster add-node <new> " + e.addr + " --cluster-slave"
		}
	}
	out := []Finding{f}
	want, _ := strconv.ParseInt(e.conf["min-replicas-to-write"], 10, 64)
	// The field is there only if a number of them is needed.
	if good, needed := e.info["min_slaves_good_slaves"]; needed && (good == "0" || e.number("min_slaves_good_slaves") < want) {
		out = append(out, Finding{
			Severity: e.problem(), Found: good + " replicas are in step, fewer than min-replicas-to-write: writes are refused",
			Advice: "bring the replicas back, or CONFIG SET min-replicas-to-write 0",
		})
	}
	return out, e.confErr
}

func (e *exam) cluster(ctx context.Context) ([]Finding, error) {
	text, err := e.do(ctx, "CLUSTER", "INFO").ToString()
	isCluster := e.config.topology == cluster
	if reply, ok := rueidis.IsRedisErr(err); ok && strings.Contains(reply.Error(), "cluster support disabled") {
		if !isCluster {
			return []Finding{{Found: "not of a cluster"}}, nil
		}
		return []Finding{{
			Severity: Problem, Found: "not in cluster mode, and the URL is of a cluster",
			Advice: "use redis:// or redis+sentinel://, or set cluster-enabled yes in its configuration file",
		}}, nil
	}
	if err != nil {
		return nil, err
	}
	if !isCluster {
		return []Finding{{
			Severity: Problem, Found: "a node of a cluster, which refuses most keys with MOVED",
			Advice: "use redis+cluster://" + e.addr,
		}}, nil
	}
	m := fields(text)
	f := Finding{Found: fmt.Sprintf("cluster_state %s, %s of %d slots served", m["cluster_state"], m["cluster_slots_ok"], slots)}
	if m["cluster_state"] != "ok" || m["cluster_slots_ok"] != strconv.Itoa(slots) {
		f.Severity = Problem
		f.Advice = "bring its primaries back, or give the slots to others: redis-cli --cluster fix " + e.addr
	}
	return []Finding{f}, nil
}

// clock compares the server's clock with this machine's. The quickest of several
// answers says it best.
func (e *exam) clock(ctx context.Context) ([]Finding, error) {
	for range 5 {
		start := e.wall()
		reply, err := e.do(ctx, "TIME").AsStrSlice()
		trip := e.wall().Sub(start)
		if err != nil {
			return nil, err
		}
		if len(reply) != 2 {
			return nil, errAnswer
		}
		seconds, _ := strconv.ParseInt(reply[0], 10, 64)
		micros, _ := strconv.ParseInt(reply[1], 10, 64)
		if !e.timed || trip/2 < e.slack {
			e.timed, e.slack = true, trip/2
			e.ahead = time.Unix(seconds, micros*1000).Sub(start.Add(trip / 2))
		}
	}
	f := Finding{Found: fmt.Sprintf("%v ahead of this machine's clock, give or take %v", round(e.ahead), round(e.slack))}
	if e.ahead.Abs()-e.slack > mostSkew {
		f.Severity = Info
		f.Found += "; decisions are made by the server's"
		f.Advice = "run chrony or another NTP client on both"
	}
	return []Finding{f}, nil
}

func (e *exam) latency(ctx context.Context) ([]Finding, error) {
	var trips []time.Duration
	for range 5 {
		start := e.wall()
		err := e.do(ctx, "PING").Error()
		trips = append(trips, e.wall().Sub(start))
		if _, ok := rueidis.IsRedisErr(err); err != nil && !ok { // a refusal takes as long
			return nil, err
		}
	}
	slices.Sort(trips)
	trip := trips[len(trips)/2]
	f := Finding{Found: fmt.Sprintf("a round trip takes %v", round(trip))}
	switch {
	case trip > e.config.timeout:
		f.Severity = e.problem()
		f.Found += fmt.Sprintf(", and the URL's timeout is %v", e.config.timeout)
		f.Advice = fmt.Sprintf("put the store nearer to the server, or timeout=%v into the URL", round(4*trip))
	case trip > mostTrip:
		f.Severity, f.Advice = Warning, "put the store nearer to the server, and see SLOWLOG GET and LATENCY DOCTOR there"
	}
	return []Finding{f}, nil
}

// ttl looks for counters that would stay for ever. It looks at some thousands of
// keys only, a thousand at a time, each of which takes Redis less than a
// millisecond. A prefix has no character that MATCH reads as another.
func (e *exam) ttl(ctx context.Context) ([]Finding, error) {
	var lost []string
	cursor, seen := "0", 0
	for range 10 {
		page, err := e.do(ctx, "SCAN", cursor, "MATCH", e.config.prefix+":{*", "COUNT", "1000").AsScanEntry()
		if err != nil {
			return nil, err
		}
		names, err := e.forever(ctx, page.Elements)
		if err != nil {
			return nil, err
		}
		lost = append(lost, names...)
		seen += len(page.Elements)
		if cursor = strconv.FormatUint(page.Cursor, 10); cursor == "0" {
			break
		}
	}
	f := Finding{Found: fmt.Sprintf("of %d counters looked at, %d have no time to live", seen, len(lost))}
	if cursor != "0" {
		f.Found += "; there are more keys"
	}
	if len(lost) > 0 {
		f.Severity = Warning
		f.Found += fmt.Sprintf(", as %.80q", lost[:min(3, len(lost))])
		f.Advice = "the next take of each sets it; those that nobody asks for stay until DEL"
	}
	return []Finding{f}, nil
}

// forever returns those keys that have no time to live.
func (e *exam) forever(ctx context.Context, keys []string) (out []string, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	asks := make([][]string, len(keys))
	for i, k := range keys {
		asks[i] = []string{"PTTL", k}
	}
	for i, r := range e.doAll(ctx, asks...) {
		left, err := r.AsInt64()
		reply, ok := rueidis.IsRedisErr(err)
		switch {
		case ok && moving(reply.Error()): // to another server, together with its time to live
		case err != nil:
			return nil, err
		case left == -1:
			out = append(out, keys[i])
		}
	}
	return out, nil
}

// probes are all commands that the store needs, in forms that change nothing:
// Redis looks first whether the user may, and then finds an argument wrong, or
// no such key.
var probes = []struct {
	command string // KEY stands for a counter that does not exist
	only    topology
}{
	{command: "EVALSHA none x"},
	{command: "EVAL return x"},
	{command: "TIME"},
	{command: "MGET KEY"},
	{command: "EXISTS KEY"},
	{command: "PTTL KEY"},
	{command: "STRLEN KEY"},
	{command: "GETRANGE KEY 0 0"},
	{command: "SETRANGE KEY x x"},
	{command: "PEXPIRE KEY x"},
	{command: "PSETEX KEY x x"},
	{command: "DEL KEY"},
	{command: "ROLE", only: sentinel},
	{command: "CLUSTER SLOTS", only: cluster},
}

func (e *exam) acl(ctx context.Context) ([]Finding, error) {
	key := e.config.prefix + ":{doctor-" + rand.Text() + "}:doctor" + suffixes[stint.SlidingWindow]
	var asks [][]string
	for _, p := range probes {
		if p.only == 0 || p.only == e.config.topology {
			asks = append(asks, strings.Fields(strings.Replace(p.command, "KEY", key, 1)))
		}
	}
	var missing []string
	for _, r := range e.doAll(ctx, asks...) {
		reply, ok := rueidis.IsRedisErr(r.Error())
		switch {
		case ok && denied(reply.Error()):
			missing = append(missing, e.rule(reply.Error()))
		case r.Error() != nil && !ok:
			return nil, r.Error()
		}
	}
	if len(missing) == 0 {
		return []Finding{{Found: "user " + e.user() + " may run all that the store needs"}}, nil
	}
	slices.Sort(missing)
	rules := strings.Join(slices.Compact(missing), " ")
	return []Finding{{
		Severity: e.problem(), Found: "user " + e.user() + " lacks " + rules,
		Advice: "ACL SETUSER " + e.user() + " " + rules + "; docs/redis.md lists all that is needed",
	}}, nil
}

// rule returns the ACL rule that a refusal asks for. Redis quotes the command; if
// there is none, it was the key.
func (e *exam) rule(reply string) string {
	if words := strings.Split(reply, "'"); len(words) == 3 {
		return "+" + words[1]
	}
	return "~" + e.config.prefix + ":*"
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
