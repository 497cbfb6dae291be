package redisstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/stintdev/stint"
)

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
