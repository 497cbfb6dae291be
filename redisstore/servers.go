package redisstore

import (
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
	"github.com/stintdev/stint/internal/kit/slot"
)

// servers are the servers that have counters, and the slots of each.
type servers struct {
	names []string
	slots []uint16 // the index of the server of each slot; nil: the first has all
	probe []string // for each, a subject whose counters it has; "" if it has none
}

func newServers(names []string, owners []uint16) *servers {
	m := &servers{names: names, slots: owners, probe: make([]string, len(names))}
	for n, found := 0, 0; found < len(names) && n < 8*slot.Count; n++ {
		subject := "probe:" + strconv.Itoa(n)
		at := uint16(0)
		if owners != nil {
			at = owners[slot.Of("{"+subject+"}")]
		}
		if int(at) < len(names) && m.probe[at] == "" {
			m.probe[at] = subject
			found++
		}
	}
	return m
}

// of returns the name of the server that has a slot.
func (m *servers) of(slot int) string {
	if m.slots == nil {
		return m.names[0]
	}
	if at := int(m.slots[slot]); at < len(m.names) {
		return m.names[at]
	}
	return "" // no server has it
}

// firstServers returns what is known before any server has been asked.
func (s *Store) firstServers() *servers {
	c := &s.config
	if s.ring != nil {
		return s.ring.servers()
	}
	name := strings.Join(c.addrs, ",")
	if c.topology == sentinel {
		name = c.primary // which stays, while its address changes
	}
	return newServers([]string{name}, nil)
}

// Servers returns the names of the servers that have counters: the address in the URL, the name that the
// Sentinels know the primary by, or the addresses of the primaries of a Cluster or of the servers of a
// ring. As long as no server of a Cluster has been reached, it returns all addresses in the URL as one.
// While a ring is changed, old->new stands for the counters that are moved from one server to the other,
// and need both.
func (s *Store) Servers() []string { return slices.Clone(s.servers.Load().names) }

// Shares returns the part of all subjects that each of the servers has, from 0 to 1, by the slots that are
// placed there.
func (s *Store) Shares() map[string]float64 {
	m := s.servers.Load()
	if m.slots == nil {
		return map[string]float64{m.names[0]: 1}
	}
	count := make([]int, len(m.names)+1)
	for _, at := range m.slots {
		count[min(int(at), len(m.names))]++ // the last are no one's
	}
	out := make(map[string]float64, len(m.names))
	for i, name := range m.names {
		out[name] = float64(count[i]) / slot.Count
	}
	return out
}

// Server returns the name of the server that has the counter of an ask. In a Cluster it may be out of
// date by a second or two; it is empty if no server is responsible.
func (s *Store) Server(a *stint.Ask) string {
	m := s.servers.Load()
	if m.slots == nil {
		return m.names[0]
	}
	var buf [192]byte
	return m.of(slot.Of(s.appendKey(buf[:0], a)))
}

// probeLimit is of the counters that pings use, which expire after two seconds.
var probeLimit = stint.Limit{Algorithm: stint.FixedWindow, Max: 1_000_000, Window: stint.Every(time.Second)}

// PingServer checks that a server makes decisions: it takes a unit of a counter that only pings use. So it
// fails if the server cannot be reached, does not accept writes, is out of memory, or is too busy.
func (s *Store) PingServer(ctx context.Context, server string) error {
	m := s.servers.Load()
	at := slices.Index(m.names, server)
	if at < 0 || m.probe[at] == "" {
		return s.alive() // it has no counters any more
	}
	ask := []stint.Ask{{Key: stint.Key{Subject: m.probe[at], Name: "stint-probe"}, Limit: probeLimit, Cost: 1}}
	return s.Take(ctx, ask, make([]stint.Decision, 1))
}

// Ping checks that all servers make decisions.
func (s *Store) Ping(ctx context.Context) error {
	names := s.Servers()
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			if errs[i] = s.PingServer(ctx, name); errs[i] != nil && len(names) > 1 {
				errs[i] = fmt.Errorf("%s: %w", name, errs[i])
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// follow keeps track of the servers of a Cluster.
func (s *Store) follow() {
	const known, unknown = time.Second, 50 * time.Millisecond
	pause := unknown
	for {
		if s.look() {
			pause = known
		}
		if wait(s.base, pause) != nil {
			return
		}
	}
}

// look asks a server of the Cluster which servers have which slots. It reports whether one has answered.
func (s *Store) look() bool {
	client := s.links[0].client.Load()
	if client == nil {
		return false
	}
	for addr, node := range (*client).Nodes() {
		const limit = 200 * time.Millisecond // others are asked, too
		ctx, cancel := context.WithTimeout(s.base, min(limit, s.config.timeout))
		ranges, err := node.Do(ctx, node.B().ClusterSlots().Build()).ToArray()
		cancel()
		if err != nil {
			continue
		}
		names, owners, ok := readSlots(ranges, addr)
		if !ok {
			continue
		}
		if last := s.servers.Load(); !slices.Equal(last.names, names) || !slices.Equal(last.slots, owners) {
			s.servers.Store(newServers(names, owners))
		}
		return true
	}
	return false
}

// readSlots reads the reply to CLUSTER SLOTS of the server at addr: the primaries, in the order of their
// names, and which of them has each slot.
func readSlots(ranges []rueidis.RedisMessage, addr string) (names []string, owners []uint16, ok bool) {
	type part struct {
		first, last int64
		name        string
	}
	var parts []part
	for _, r := range ranges {
		fields, err := r.ToArray() // first, last, primary, replicas
		if err != nil || len(fields) < 3 {
			return nil, nil, false
		}
		p := part{}
		if p.first, err = fields[0].AsInt64(); err != nil {
			return nil, nil, false
		}
		if p.last, err = fields[1].AsInt64(); err != nil || p.first < 0 || p.last >= slot.Count {
			return nil, nil, false
		}
		primary, err := fields[2].ToArray() // host, port, id
		if err != nil || len(primary) < 2 {
			return nil, nil, false
		}
		host, _ := primary[0].ToString() // nil or empty: the same as this server's
		port, err := primary[1].AsInt64()
		if err != nil {
			return nil, nil, false
		}
		if host == "" || host == "?" {
			host, _, _ = net.SplitHostPort(addr)
		}
		p.name = net.JoinHostPort(host, strconv.FormatInt(port, 10))
		parts, names = append(parts, p), append(names, p.name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	owners = slices.Repeat([]uint16{slot.Count}, slot.Count) // no one's
	for _, p := range parts {
		at, _ := slices.BinarySearch(names, p.name)
		for i := p.first; i <= p.last; i++ {
			owners[i] = uint16(at)
		}
	}
	return names, owners, len(names) > 0
}

// partsError is the error of a call that was split, and the servers that have failed.
type partsError struct {
	error
	servers []string
}

// FailedServers returns the servers that have failed. See BreakerOptions.Server in package layer.
func (e *partsError) FailedServers() []string { return e.servers }

func (e *partsError) Unwrap() error { return e.error }

// blame adds to the error of a split call the servers of the parts that have failed.
func (s *Store) blame(err error, failed []*part) error {
	m := s.servers.Load()
	if err == nil || len(failed) == 0 || m.slots == nil {
		return err
	}
	e := &partsError{error: err}
	for _, p := range failed {
		for i := range p.items {
			if name := m.of(slot.Of(p.items[i].key)); !slices.Contains(e.servers, name) {
				e.servers = append(e.servers, name)
			}
		}
	}
	return e
}
