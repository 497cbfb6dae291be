package link

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/kit/quiet"
	"github.com/stintdev/stint/internal/region/gossip"
)

// The bounds of a stream.
const (
	MaxMessage   = 1 << 20
	MaxEntries   = 1 << 14
	MaxAsks      = 1 << 13 // whose decisions fit into a message
	MaxBatches   = 16
	MaxCalls     = 1024
	MaxCallBytes = 16 << 20
	MaxStreams   = 1024
	// MaxHandshakes is how many connections may be in their handshake, apart from streams.
	MaxHandshakes = 256
	MaxRegions    = 64
	MinSecret     = 16

	maxName = 255 // bytes of the name of a region or a node
)

// Region is a region and its weight.
type Region struct {
	Name   string
	Weight uint32
}

// Identity is what both ends of a link have to know of this node.
type Identity struct {
	Self gossip.Sender
	// Regions are all regions with their weights, in any order, also this one. The other side must know the
	// same.
	Regions []Region
	// Central is the region that has the central counters, the same for all, or none.
	Central string
	// Secrets returns what all regions share, each of at least MinSecret bytes: a client proves that it knows the
	// first, and a server accepts all of them, so that one can be replaced while regions are connected. It is called
	// for each handshake, and when the options are checked. Nil, or none: there are certificates.
	Secrets func() [][]byte
	// Clock is the clock of this region's store, in microseconds since the Unix epoch. It is read for each
	// ping and should not wait for anything.
	Clock func() int64
	// Standing says whether this region is cut off from another, and for how long it consents that others go on. It
	// is asked for each ping, like Clock. Nil: it never is, and never consents.
	Standing func() (alone bool, consent time.Duration)
	// Log is for streams that begin, end or are refused: at most one such line a second. Default: none.
	Log *slog.Logger

	pace pace
}

// pace is how fast a stream has to be.
type pace struct {
	ping                      time.Duration // between pings
	silence                   time.Duration // without any message, after which a stream is over
	handshake                 time.Duration
	firstBackoff, mostBackoff time.Duration
	steady                    time.Duration // a stream of this length lets the backoff begin anew
	longestCall               time.Duration // if the caller has no deadline
}

var usualPace = pace{
	ping: time.Second, silence: 5 * time.Second, handshake: 5 * time.Second,
	firstBackoff: 100 * time.Millisecond, mostBackoff: 5 * time.Second, steady: time.Second,
	longestCall: 30 * time.Second,
}

// settle checks the identity, and brings it into the form that is used.
func (i *Identity) settle() error {
	i.Regions = slices.Clone(i.Regions)
	slices.SortFunc(i.Regions, func(a, b Region) int { return cmp.Compare(a.Name, b.Name) })
	switch n := len(i.Regions); {
	case n < 2 || n > MaxRegions:
		return invalid("Regions", strconv.Itoa(n)+" of them", "2 to "+strconv.Itoa(MaxRegions))
	case !i.knows(i.Self.Region):
		return invalid("Self.Region", i.Self.Region, "one of Regions")
	case !validName(i.Self.Node):
		return invalid("Self.Node", i.Self.Node, nameWant)
	case i.Clock == nil:
		return invalid("Clock", "nil", "the clock of this region's store")
	}
	for n, r := range i.Regions {
		if !validName(r.Name) {
			return invalid("Regions", r.Name, nameWant)
		}
		if n > 0 && r.Name == i.Regions[n-1].Name {
			return invalid("Regions", r.Name, "each region once")
		}
	}
	if i.Secrets == nil {
		i.Secrets = func() [][]byte { return nil }
	}
	for _, s := range i.Secrets() {
		if len(s) < MinSecret {
			return invalid("Secrets", strconv.Itoa(len(s))+" bytes", "at least "+strconv.Itoa(MinSecret)+", or none")
		}
	}
	if i.Standing == nil {
		i.Standing = func() (bool, time.Duration) { return false, 0 }
	}
	if i.Log == nil {
		i.Log = slog.New(slog.DiscardHandler)
	}
	i.Log = slog.New(quiet.New(i.Log.Handler(), "region", "reason"))
	if i.pace == (pace{}) {
		i.pace = usualPace
	}
	return nil
}

func (i *Identity) knows(region string) bool {
	return slices.ContainsFunc(i.Regions, func(r Region) bool { return r.Name == region })
}

const nameWant = "a name of 1 to 255 bytes in UTF-8"

func validName(s string) bool { return s != "" && len(s) <= maxName && utf8.ValidString(s) }

func invalid(field, value, want string) error {
	return fmt.Errorf("link: %s %q: want %s", field, value, want)
}

// Options are the options of a [Link].
type Options struct {
	Identity
	// Region is the other region, and URL where its nodes listen: https://host:port, or http://host:port in
	// private networks.
	Region string
	URL    string
	// TLS returns the configuration for https. It is called for each connection. Default: the authorities of the
	// system.
	TLS func() *tls.Config

	// Connected is called when a handshake is done, with the process that was reached. Until it returns,
	// Send returns ErrDown. A process whose Run is another one has received nothing on earlier streams.
	Connected func(region string, server gossip.Sender)
	// Acknowledged is called when the batch with this number and all that were sent before it on this
	// stream have been received. Callbacks are made one after the other, and hold no lock of the link; the
	// link waits while they run.
	Acknowledged func(region string, number uint64)
	// Heard is called for each answer to a ping, so long after it was sent, with what Identity.Standing says there.
	Heard func(region string, after time.Duration, alone bool, consent time.Duration)
}

func (o *Options) settle() (target string, err error) {
	if err := o.Identity.settle(); err != nil {
		return "", err
	}
	if o.Region == o.Self.Region || !o.knows(o.Region) {
		return "", invalid("Region", o.Region, "another one of Regions")
	}
	target, secure, ok := ParseURL(o.URL)
	switch {
	case !ok:
		return "", invalid("URL", o.URL, "https://host:port or http://host:port")
	case !secure && o.TLS != nil:
		return "", invalid("URL", o.URL, "https://, since there is TLS")
	case secure && o.TLS == nil:
		o.TLS = func() *tls.Config { return &tls.Config{MinVersion: tls.VersionTLS12} }
	}
	if len(o.Secrets()) == 0 && (!secure || !hasCertificate(o.TLS())) {
		return "", invalid("Secrets", "", "a secret, or https with a certificate of this region")
	}
	if o.Connected == nil {
		o.Connected = func(string, gossip.Sender) {}
	}
	if o.Acknowledged == nil {
		o.Acknowledged = func(string, uint64) {}
	}
	if o.Heard == nil {
		o.Heard = func(string, time.Duration, bool, time.Duration) {}
	}
	return target, nil
}

// ParseURL returns host and port of the URL of a region, and whether its nodes are called over TLS. It is not ok unless it
// is https://host:port or http://host:port.
func ParseURL(text string) (target string, secure, ok bool) {
	u, err := url.Parse(text)
	if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Hostname() == "" || u.User != nil ||
		(u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.Fragment != "" {
		return "", false, false
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	return u.Host, u.Scheme == "https", err == nil && port > 0
}

// hasCertificate reports whether a client has a certificate.
func hasCertificate(c *tls.Config) bool {
	return len(c.Certificates) > 0 || c.GetClientCertificate != nil
}

// Receiver takes batches of other regions.
type Receiver interface {
	// Receive takes a batch. For a stream it is called in the order in which they were sent, and never at
	// the same time. Nil means that the batch may be acknowledged, and an error ends the stream. Limits are
	// valid. Keys, instants and units are what the peer says.
	Receive(ctx context.Context, from gossip.Sender, b gossip.Batch) error
}

// ServerOptions are the options of a [Server].
type ServerOptions struct {
	Identity
	// TLS is the server's. If it asks for certificates, it has to verify them, and they name regions.
	// Default: none.
	TLS *tls.Config
	// Receiver takes the batches.
	Receiver Receiver
	// Central has the central counters. Nil: they are in another region, and calls are refused.
	Central stint.Store
}
