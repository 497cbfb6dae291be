package daemon

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/region"
	"github.com/stintdev/stint/internal/region/gossip"
	"github.com/stintdev/stint/internal/region/link"
	"github.com/stintdev/stint/internal/region/quota"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/memstore"
)

// This file builds what connects a node with other regions, around the store of its own.

// creditWait is how long a take waits until other regions know what was admitted here.
const creditWait = 300 * time.Millisecond

// runSuffix is how many bytes the name of a node is longer for other regions, so that no two processes have the same.
const runSuffix = 7

// regional is what connects a node with other regions.
type regional struct {
	*regions
	gossip  *gossip.Store
	links   *region.Links
	server  *link.Server
	weights *quota.Weights // nil: there is no database, and none follow demand
	away    awayRegion     // the central one
	repaid  repaid         // to it

	listener *acceptor // nil: it does not listen
	// By what regions know each other. A reload replaces it.
	certificates tlsPointer // of the listener
	secrets      atomic.Pointer[[][]byte]
}

// repaid counts units that were admitted without the central region, and charged there when it was back, lost, or recovered
// by then.
type repaid struct{ charged, lost, recovered atomic.Int64 }

func (r *repaid) add(back layer.Return) {
	r.charged.Add(back.Paid)
	r.lost.Add(back.Lost)
	r.recovered.Add(back.Expired)
}

// weight returns the weight of this region, and that of all.
func (r *regions) weight() (own, all int) {
	for _, w := range r.all {
		if all += w.weight; w.name == r.own {
			own = w.weight
		}
	}
	return own, all
}

// least returns the part of a limit through which the smallest cost passes, and its region.
func (r *regions) least(l stint.Limit) (region string, part stint.Limit) {
	var weights []int
	for _, w := range r.all {
		weights = append(weights, w.weight)
	}
	for i, w := range r.all {
		if p, _ := quota.Part(l, weights, i); region == "" || p.Cap() < part.Cap() {
			region, part = w.name, p
		}
	}
	return region, part
}

// secure reports whether a peer is called over TLS. It is not ok if no link can use the URL.
func (p *Peer) secure() (secure, ok bool) {
	_, secure, ok = link.ParseURL(string(p.URL))
	return secure, ok
}

// identity returns what both ends of a link have to know of a process.
func (r *regions) identity(self gossip.Sender, secrets func() [][]byte) link.Identity {
	out := link.Identity{Self: self, Central: r.central, Secrets: secrets}
	for _, w := range r.all {
		out.Regions = append(out.Regions, link.Region{Name: w.name, Weight: uint32(w.weight)})
	}
	return out
}

// RegionLinks returns the options of links to the other regions, for a process of this region that has the name
// node. They have no clock.
func (c *Config) RegionLinks(node string) (out []link.Options) {
	of := c.regions()
	if of == nil {
		return nil
	}
	var r regional
	r.admit(c)
	identity := of.identity(gossip.Sender{Region: of.own, Node: node, Run: newRun()}, r.currentSecrets)
	for _, w := range of.all {
		if w.url != "" {
			out = append(out, link.Options{Identity: identity, Region: w.name, URL: w.url, TLS: r.callerTLS()})
		}
	}
	return out
}

// admit sets by what regions know each other.
func (r *regional) admit(c *Config) {
	var secrets [][]byte
	for _, s := range c.credentials.regionSecrets {
		secrets = append(secrets, []byte(s))
	}
	r.secrets.Store(&secrets)
	r.certificates.Store(c.credentials.tls[regionListener])
}

func (r *regional) currentSecrets() [][]byte { return *r.secrets.Load() }

// openRegions puts what connects this node with other regions around its store, if there are any.
func (d *Daemon) openRegions() error {
	of := d.config.regions()
	if of == nil || len(of.all) < 2 {
		return nil
	}
	r := &regional{regions: of}
	r.admit(d.config)
	self := gossip.Sender{Region: of.own, Node: d.config.nodeName() + "-" + rand.Text()[:runSuffix-1], Run: newRun()}
	home, err := d.openQuota(r, self)
	if err != nil {
		return err
	}
	local, err := memstore.New(memstore.Options{MaxKeys: d.config.Server.MaxKeys})
	if err != nil {
		return err
	}
	own, all := of.weight()
	identity := of.identity(self, r.currentSecrets)
	identity.Log = d.log
	peers, names := map[string]string{}, []string(nil)
	for _, w := range of.all {
		if w.url != "" {
			peers[w.name], names = w.url, append(names, w.name)
		}
	}
	r.gossip, err = gossip.New(home, gossip.Options{
		Self: self, Peers: names, Weight: own, Weights: all, Nodes: d.countReplicas, Local: local, Wait: creditWait,
	})
	if err != nil {
		return err
	}
	r.links, err = region.OpenLinks(region.LinksOptions{
		Identity: identity, Peers: peers, TLS: r.callerTLS(), Gossip: r.gossip, Interval: of.interval,
	})
	if err != nil {
		return err
	}
	d.regional = r
	identity.Clock, identity.Standing = r.gossip.Clock, r.gossip.Standing
	o := link.ServerOptions{Identity: identity, Receiver: r.links}
	if r.certificates.Load() != nil {
		o.TLS = r.certificates.config()
	}
	if of.central == of.own {
		o.Central = d.store
	}
	if of.listener.Address != "" {
		if r.server, err = link.NewServer(o); err != nil {
			return err
		}
	}
	d.store = r.gossip
	if of.central != "" && of.central != of.own {
		central, err := d.openCentral(r)
		if err != nil {
			return err
		}
		d.store = region.NewStore(r.gossip, central)
	}
	return nil
}

// openQuota puts this region's parts of quotas around the store.
func (d *Daemon) openQuota(r *regional, self gossip.Sender) (stint.Store, error) {
	var all []quota.Region
	for _, w := range r.all {
		all = append(all, quota.Region{Name: w.name, Weight: w.weight})
	}
	table, err := quota.NewTable(r.own, all)
	if err != nil {
		return nil, err
	}
	if d.control != nil {
		r.weights, err = quota.NewWeights(d.control.catalog.Database(), quota.WeightsOptions{
			Table: table, Node: self.Region + "/" + self.Node, Log: d.log,
		})
		if err != nil {
			return nil, err
		}
	}
	return quota.New(d.store, quota.Options{Table: table, Weights: r.weights})
}

// openCentral returns the counters of the central region.
func (d *Daemon) openCentral(r *regional) (stint.Store, error) {
	local, err := memstore.New(memstore.Options{MaxKeys: d.config.Server.MaxKeys})
	if err != nil {
		return nil, err
	}
	own, all := r.weight()
	told := d.tellReturns("the central region was away", "region", r.central)
	return region.Central(r.links.Central(r.central), region.CentralOptions{
		Local: local, Weight: own, Weights: all, Nodes: d.countReplicas, Leases: d.metrics.leases,
		OnChange: func(open bool, reason string) {
			d.log.Warn("the central region", "region", r.central, "reachable", !open, "reason", reason)
			r.away.set(open, reason)
		},
		OnReturn: func(back layer.Return) {
			r.repaid.add(back)
			told(back)
		},
	})
}

// newRun returns a number that no other process of this node has.
func newRun() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return binary.LittleEndian.Uint64(b[:])
}

// callerTLS returns how this node calls other regions: with the certificate of its own listener. If clients of that
// need one of some authorities, so do the listeners of the others. Nil: there is no certificate.
func (r *regional) callerTLS() func() *tls.Config {
	if r.certificates.Load() == nil {
		return nil
	}
	return func() *tls.Config {
		listener := r.certificates.Load()
		return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: listener.Certificates, RootCAs: listener.ClientCAs}
	}
}

// listen opens the listener for other regions.
func (r *regional) listen(ctx context.Context, d *Daemon) error {
	if r.server == nil {
		return nil
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", r.regions.listener.Address)
	if err != nil {
		return errors.Join(&ListenError{regionListener, err}, r.server.Close())
	}
	r.listener = &acceptor{Listener: l, log: d.log.With("listener", regionListener)}
	return nil
}

// URL returns the URL of the listener on this machine.
func (r *regional) URL() string {
	scheme := "http://"
	if r.certificates.Load() != nil {
		scheme = "https://"
	}
	return scheme + localAddress(r.listener)
}

// start serves other regions, and follows demand, until ctx ends.
func (r *regional) start(ctx context.Context, d *Daemon) {
	if r.weights != nil {
		d.work.Go(func() { r.weights.Run(ctx) })
	}
	if r.listener == nil {
		return
	}
	d.work.Go(func() {
		if err := r.server.Serve(r.listener); err != nil {
			d.failed <- err
		}
	})
}

// stop tells the other regions what they do not know yet, and leaves them.
func (r *regional) stop() {
	_ = r.links.Close() // what could not be told is lost
	if r.server != nil {
		_ = r.server.Close()
	}
}
