package doctor

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

	"github.com/stintdev/stint/internal/kit/slot"
)

// checks are run in this order. Each has at least one finding for every server.
var checks = []struct {
	name     string
	needs    string // the ACL rules for its commands
	info     bool   // it needs the answer to INFO
	counters bool   // only for primaries, not for replicas
	run      func(*server, context.Context) ([]Finding, error)
}{
	{name: "version", needs: "+info", info: true, run: (*server).checkVersion},
	{name: "role", needs: "+info", info: true, run: (*server).checkRole},
	{name: "eviction", needs: "+info", info: true, run: (*server).checkEviction},
	{name: "memory", needs: "+info", info: true, run: (*server).checkMemory},
	{name: "persistence", needs: "+info +config|get", info: true, run: (*server).checkPersistence},
	{name: "replication", needs: "+info +config|get", info: true, run: (*server).checkReplication},
	{name: "cluster", needs: "+cluster|info +cluster|nodes", run: (*server).checkCluster},
	{name: "clock", needs: "+time", run: (*server).checkClock},
	{name: "latency", run: (*server).checkLatency},
	{name: "ttl", needs: "+scan +pttl", counters: true, run: (*server).checkTTL},
	{name: "acl", run: (*server).checkACL},
}

func (s *server) checkVersion(context.Context) ([]Finding, error) {
	version := s.info["redis_version"] // Valkey sets it to the Redis version it is compatible with
	f := Finding{Found: "Redis " + version}
	if v := s.info["valkey_version"]; v != "" {
		f.Found = "Valkey " + v
	}
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil || major < 6 || major == 6 && minor < 2 {
		f.Severity, f.Advice = Problem, "upgrade to Redis 6.2 or later, or to Valkey"
	}
	return []Finding{f}, nil
}

func (s *server) checkRole(context.Context) ([]Finding, error) {
	role := s.info["role"]
	f := Finding{Found: "role " + role}
	switch {
	case role == "slave" && s.role == asPrimary && s.isSingle():
		f.Severity = Problem
		f.Found = "a replica of " + net.JoinHostPort(s.info["master_host"], s.info["master_port"]) + ", which rejects writes or loses them"
		f.Advice = "put the primary's address into the URL, or use redis+sentinel://"
	case role == "slave" && s.role == asPrimary:
		f.Severity, f.Found, f.Advice = Problem, "a replica, though the other servers call it a primary", "wait for the failover to end, and check again"
	case role == "master" && s.role == asReplica:
		f.Severity, f.Found, f.Advice = Warning, "a primary, though the other servers call it a replica", "wait for the failover to end, and check again"
	}
	return []Finding{f}, nil
}

func (s *server) number(name string) int64 {
	n, _ := strconv.ParseInt(s.info[name], 10, 64)
	return n
}

func (s *server) checkEviction(context.Context) ([]Finding, error) {
	policy := s.info["maxmemory_policy"]
	f := Finding{Found: fmt.Sprintf("maxmemory %s, maxmemory-policy %s", s.info["maxmemory"], policy)}
	switch {
	case s.number("maxmemory") == 0:
		f.Found = unlimited + ", so nothing is evicted"
	case strings.HasPrefix(policy, "allkeys-"):
		f.Severity = Problem
		f.Found += ": when memory is full, counters are dropped, and their limits start from zero"
		f.Advice = "CONFIG SET maxmemory-policy noeviction, or volatile-ttl if the server also has data without a time to live"
	case policy == "volatile-ttl":
		f.Severity = Warning
		f.Found += ": when memory is full, the counters closest to recovery are dropped first, which does the least harm"
		f.Advice = "keep memory usage below maxmemory, or CONFIG SET maxmemory-policy noeviction"
	case strings.HasPrefix(policy, "volatile-"):
		f.Severity = Warning
		f.Found += ": when memory is full, counters are dropped, since all have a time to live"
		f.Advice = "CONFIG SET maxmemory-policy volatile-ttl, which drops those closest to recovery first, or noeviction"
	default:
		f.Severity = Info
		f.Found += ": when memory is full, new counters fail with OOM errors, and existing counters are kept"
	}
	return []Finding{f}, nil
}

func (s *server) checkMemory(context.Context) ([]Finding, error) {
	used, limit := s.number("used_memory"), s.number("maxmemory")
	if limit == 0 {
		return []Finding{{Found: fmt.Sprintf("%d bytes used; %s", used, unlimited)}}, nil
	}
	percent := int64(float64(used) / float64(limit) * 100)
	f := Finding{Found: fmt.Sprintf("%d of %d bytes used, %d%%", used, limit, percent)}
	if percent > maxUsed {
		f.Severity = Warning
		f.Advice = fmt.Sprintf("CONFIG SET maxmemory %d, if the machine has enough memory, or add servers", 2*limit)
	}
	return []Finding{f}, nil
}

func (s *server) checkPersistence(context.Context) ([]Finding, error) {
	var out []Finding
	aof := s.info["aof_enabled"] == "1"
	save, known := s.conf["save"]
	if s.info["aof_last_write_status"] == "err" {
		out = append(out, Finding{
			Severity: s.problem(), Found: "the last write to the append-only file failed (aof_last_write_status:err): Redis rejects writes",
			Advice: "check the server's log, and free disk space",
		})
	}
	if s.info["rdb_last_bgsave_status"] == "err" {
		f := Finding{
			Severity: s.problem(), Found: "the last snapshot failed (rdb_last_bgsave_status:err): Redis rejects writes",
			Advice: "check the server's log, free disk space, then run BGSAVE. Until then, CONFIG SET stop-writes-on-bgsave-error no allows writes",
		}
		if known && save == "" || s.conf["stop-writes-on-bgsave-error"] == "no" {
			f.Severity, f.Found = Warning, "the last snapshot failed (rdb_last_bgsave_status:err)"
			f.Advice = "check the server's log, free disk space, then run BGSAVE"
		}
		out = append(out, f)
	}
	switch {
	case aof && s.conf["appendfsync"] == "always":
		out = append(out, Finding{
			Severity: Warning, Found: "appendfsync always: every decision waits for the disk",
			Advice: "CONFIG SET appendfsync everysec",
		})
	case !aof && known && save == "":
		out = append(out, Finding{
			Severity: Info, Found: "neither snapshots nor an append-only file: after a restart all limits start from zero",
			Advice: "if that matters, CONFIG SET appendonly yes, with appendfsync everysec",
		})
	}
	if len(out) == 0 && s.confErr == nil {
		out = append(out, Finding{Found: fmt.Sprintf("save %q, appendonly %t, appendfsync %s", save, aof, s.conf["appendfsync"])})
	}
	return out, s.confErr
}

func (s *server) checkReplication(context.Context) ([]Finding, error) {
	if s.info["role"] == "slave" {
		if s.info["master_link_status"] == "up" {
			return []Finding{{Found: "in sync with its primary"}}, nil
		}
		return []Finding{{
			Severity: Warning, Found: "its link to the primary is down: if it takes over, counts since then are lost",
			Advice: "check its log, and whether it can reach " + net.JoinHostPort(s.info["master_host"], s.info["master_port"]),
		}}, nil
	}
	replicas := s.number("connected_slaves")
	f := Finding{Found: fmt.Sprintf("%d replicas", replicas)}
	if replicas == 0 && s.role == asPrimary && !s.isSingle() {
		f.Severity = Warning
		f.Found = "no replica: if this server fails, no other takes over"
		f.Advice = "add one: REPLICAOF " + strings.Replace(s.addr, ":", " ", 1) + " on another server"
		if s.Cluster {
			f.Advice = "add one: redis-cli --cluster add-node <new> " + s.addr + " --cluster-slave"
		}
	}
	out := []Finding{f}
	want, _ := strconv.ParseInt(s.conf["min-replicas-to-write"], 10, 64)
	// The field exists only if min-replicas-to-write is set.
	if good, needed := s.info["min_slaves_good_slaves"]; needed && (good == "0" || s.number("min_slaves_good_slaves") < want) {
		out = append(out, Finding{
			Severity: s.problem(), Found: good + " replicas are in sync, fewer than min-replicas-to-write: Redis rejects writes",
			Advice: "restore the replicas, or CONFIG SET min-replicas-to-write 0",
		})
	}
	return out, s.confErr
}

func (s *server) checkCluster(ctx context.Context) ([]Finding, error) {
	text, err := s.do(ctx, "CLUSTER", "INFO").ToString()
	if reply, ok := rueidis.IsRedisErr(err); ok && strings.Contains(reply.Error(), "cluster support disabled") {
		if !s.Cluster {
			return []Finding{{Found: "not part of a cluster"}}, nil
		}
		return []Finding{{
			Severity: Problem, Found: "not in cluster mode, but the URL names a cluster",
			Advice: "use redis:// or redis+sentinel://, or set cluster-enabled yes in its configuration file",
		}}, nil
	}
	if err != nil {
		return nil, err
	}
	if !s.Cluster {
		return []Finding{{
			Severity: Problem, Found: "a cluster node, which replies MOVED for most keys",
			Advice: "use redis+cluster://" + s.addr,
		}}, nil
	}
	m := fields(text)
	f := Finding{Found: fmt.Sprintf("cluster_state %s, %s of %d slots served", m["cluster_state"], m["cluster_slots_ok"], slot.Count)}
	if m["cluster_state"] != "ok" || m["cluster_slots_ok"] != strconv.Itoa(slot.Count) {
		f.Severity = Problem
		f.Advice = "restore the missing primaries, or assign their slots to others: redis-cli --cluster fix " + s.addr
	}
	out := []Finding{f}
	if s.role == asPrimary && s.conf["cluster-require-full-coverage"] == "yes" {
		out = append(out, Finding{
			Severity: Info, Found: "cluster-require-full-coverage yes: if one primary fails and no replica takes over, all others stop, too",
			Advice: "CONFIG SET cluster-require-full-coverage no, so that only the counters of that primary are out of reach",
		})
	}
	return out, nil
}

// checkClock compares the server's clock with this machine's. Of several replies, the fastest is
// the most accurate.
func (s *server) checkClock(ctx context.Context) ([]Finding, error) {
	for range 5 {
		start := time.Now()
		reply, err := s.do(ctx, "TIME").AsStrSlice()
		trip := time.Since(start)
		if err != nil {
			return nil, err
		}
		if len(reply) != 2 {
			return nil, errAnswer
		}
		seconds, _ := strconv.ParseInt(reply[0], 10, 64)
		micros, _ := strconv.ParseInt(reply[1], 10, 64)
		if !s.timed || trip/2 < s.slack {
			s.timed, s.slack = true, trip/2
			s.ahead = time.Unix(seconds, micros*1000).Sub(start.Add(trip / 2))
		}
	}
	f := Finding{Found: fmt.Sprintf("%v ahead of this machine's clock, give or take %v", round(s.ahead), round(s.slack))}
	if s.ahead.Abs()-s.slack > maxSkew {
		f.Severity = Info
		f.Found += "; decisions use the server's clock"
		f.Advice = "run chrony or another NTP client on both"
	}
	return []Finding{f}, nil
}

func (s *server) checkLatency(ctx context.Context) ([]Finding, error) {
	var trips []time.Duration
	for range 5 {
		start := time.Now()
		err := s.do(ctx, "PING").Error()
		trips = append(trips, time.Since(start))
		if _, ok := rueidis.IsRedisErr(err); err != nil && !ok { // an error reply takes as long
			return nil, err
		}
	}
	slices.Sort(trips)
	trip := trips[len(trips)/2]
	f := Finding{Found: fmt.Sprintf("a round trip takes %v", round(trip))}
	switch {
	case trip > s.Timeout:
		f.Severity = s.problem()
		f.Found += fmt.Sprintf(", and the URL's timeout is %v", s.Timeout)
		f.Advice = fmt.Sprintf("move this program closer to the server, or set timeout=%v in the URL", round(4*trip))
	case trip > maxTrip:
		f.Severity, f.Advice = Warning, "move this program closer to the server, and check SLOWLOG GET and LATENCY DOCTOR"
	}
	return []Finding{f}, nil
}

// checkTTL looks for counters that never expire. It checks about ten thousand keys at most, in pages
// of a thousand, each of which takes Redis less than a millisecond. A prefix has no characters that
// are special in MATCH.
func (s *server) checkTTL(ctx context.Context) ([]Finding, error) {
	var immortal []string
	cursor, seen := "0", 0
	for range 10 {
		page, err := s.do(ctx, "SCAN", cursor, "MATCH", s.Prefix+":{*", "COUNT", "1000").AsScanEntry()
		if err != nil {
			return nil, err
		}
		names, err := s.withoutTTL(ctx, page.Elements)
		if err != nil {
			return nil, err
		}
		immortal = append(immortal, names...)
		seen += len(page.Elements)
		if cursor = strconv.FormatUint(page.Cursor, 10); cursor == "0" {
			break
		}
	}
	f := Finding{Found: fmt.Sprintf("%d of %d counters checked have no time to live", len(immortal), seen)}
	if cursor != "0" {
		f.Found += "; not all keys were checked"
	}
	if len(immortal) > 0 {
		f.Severity = Warning
		f.Found += fmt.Sprintf(", such as %.80q", immortal[:min(3, len(immortal))])
		f.Advice = "the next take of a counter sets it; unused counters stay until DEL"
	}
	return []Finding{f}, nil
}

// withoutTTL returns the keys that have no time to live.
func (s *server) withoutTTL(ctx context.Context, keys []string) (out []string, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	asks := make([][]string, len(keys))
	for i, k := range keys {
		asks[i] = []string{"PTTL", k}
	}
	for i, r := range s.doAll(ctx, asks...) {
		left, err := r.AsInt64()
		reply, ok := rueidis.IsRedisErr(err)
		switch {
		case ok && (strings.HasPrefix(reply.Error(), "MOVED ") || strings.HasPrefix(reply.Error(), "ASK ")):
			// The key is being migrated, together with its time to live.
		case err != nil:
			return nil, err
		case left == -1:
			out = append(out, keys[i])
		}
	}
	return out, nil
}

// probes are the commands that the store needs, in forms that change nothing: Redis first checks
// whether the user may run them, and then finds a wrong argument or no such key. KEY stands for a
// counter that does not exist.
var probes = []string{
	"EVALSHA none x",
	"EVAL return x",
	"TIME",
	"MGET KEY",
	"EXISTS KEY",
	"PTTL KEY",
	"STRLEN KEY",
	"GETRANGE KEY 0 0",
	"SETRANGE KEY x x",
	"PEXPIRE KEY x",
	"PSETEX KEY x x",
	"DEL KEY",
}

// sideProbes are the commands that [redisstore.Side] needs, likewise. A message to a channel without
// subscribers changes nothing.
var sideProbes = []string{
	"GET KEY",
	"SET KEY x x",
	"ZADD KEY x x",
	"ZRANGE KEY 0 0",
	"ZREM KEY x",
	"ZREMRANGEBYSCORE KEY x x",
	"PEXPIREAT KEY x",
	"PUBLISH KEY x",
}

func (s *server) checkACL(ctx context.Context) ([]Finding, error) {
	commands := probes
	switch {
	case s.Sentinel:
		commands = append(slices.Clip(commands), "ROLE")
	case s.Cluster:
		commands = append(slices.Clip(commands), "CLUSTER SLOTS")
	}
	missing, err := s.lacks(ctx, commands, s.Prefix+":{doctor-"+rand.Text()+"}:doctor")
	if err != nil {
		return nil, err
	}
	f := Finding{Found: "user " + s.user() + " may run all commands that the store needs"}
	if missing != "" {
		f = s.grant(s.problem(), missing, "")
	}
	out := []Finding{f}
	if missing, err = s.lacks(ctx, sideProbes, s.Prefix+":side/{doctor-"+rand.Text()+"}"); err != nil {
		return nil, err
	}
	if missing != "" {
		out = append(out, s.grant(Warning, missing, ": what is stored beside the counters fails. Nodes without a database "+
			"cannot count each other, and while Redis is away each admits the whole of a limit, unless server.replicas is set"))
	}
	return out, nil
}

// grant returns the finding that the user lacks some ACL rules.
func (s *server) grant(severity Severity, rules, effect string) Finding {
	return Finding{
		Severity: severity, Found: "user " + s.user() + " lacks " + rules + effect,
		Advice: "ACL SETUSER " + s.user() + " " + rules + "; docs/redis.md lists all rules",
	}
}

// lacks returns the ACL rules that are missing for commands, of which KEY is the key.
func (s *server) lacks(ctx context.Context, commands []string, key string) (rules string, err error) {
	var asks [][]string
	for _, c := range commands {
		asks = append(asks, strings.Fields(strings.Replace(c, "KEY", key, 1)))
	}
	var missing []string
	for _, r := range s.doAll(ctx, asks...) {
		reply, ok := rueidis.IsRedisErr(r.Error())
		switch {
		case ok && denied(reply.Error()):
			missing = append(missing, s.rule(reply.Error()))
		case r.Error() != nil && !ok && !rueidis.IsRedisNil(r.Error()):
			return "", r.Error()
		}
	}
	slices.Sort(missing)
	return strings.Join(slices.Compact(missing), " "), nil
}

// rule returns the ACL rule that is missing. Redis quotes the command; if none is quoted, it rejected
// the key or the channel.
func (s *server) rule(reply string) string {
	if strings.Contains(reply, "channel") {
		return "&" + s.Prefix + ":side/*"
	}
	if words := strings.Split(reply, "'"); len(words) == 3 {
		return "+" + words[1]
	}
	return "~" + s.Prefix + ":*"
}
