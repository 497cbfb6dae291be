package rule

import (
	"net/netip"
	"time"
)

// Attrs is what rules look at in a request.
type Attrs struct {
	// Method is as [Set.Method] returns it: it may name a counter, and clients may
	// invent methods.
	Method string
	// Path is the path of the request as it was sent; [Set.Match] normalizes it.
	Path string
	// IgnoreCase says that the server of this request ignores the case of paths, even if
	// [File.Case] says otherwise.
	IgnoreCase bool
	// Headers have canonical names, as in http.Header. Only the last 32 lines of a
	// header are read.
	Headers map[string][]string
	// Trusted says that the headers come through a trusted proxy. Otherwise anyone
	// may have written them: they do not set the cost of a request, and a counter
	// that is named by one is also named by the client's address, so that no client
	// can use up the limit of another.
	Trusted bool
	// Named says that the caller has named the client: a header then names a counter by
	// itself, although it may be the client's.
	Named bool

	IP  netip.Addr   // of the client, unmapped, without a zone
	Net netip.Prefix // what is counted by: an IPv4 address, or a network of IPv6

	User, Tenant, APIKey, Tier string
	Claims                     map[string]string

	// KeyLimits and UserLimits override the limits of the tier and the rule, by the
	// name of the limit.
	KeyLimits, UserLimits Values

	// Cost, if it is not 0, overrides the cost in rules: in all or, if Metered is set, in those with a
	// meter. Usage overrides the costs of the meters that it has.
	Cost    int64
	Metered bool // one of the rules that apply has a meter: see [Metered]
	Usage   map[Meter]int64
	// Estimate is what a request to a language model may use, as far as it says so. At most a quarter of a
	// limit is reserved for it, and nothing is charged of a meter that is 0. If it declares no cap, Usual is not nil, and returns what most requests
	// of this client without one have used under a rule, or 0 if that is not known.
	Estimate map[Meter]int64
	Usual    func(rule string) int64
	// Now is the instant of the request, which decides how far a rule is rolled out. Zero: all steps are done.
	Now time.Time
	// Held says that this is a part of a request that holds its places already: limits of concurrency
	// do not count it again.
	Held bool
}

// lines returns the last lines of a header: what a proxy adds comes after what a
// client has sent.
func (a *Attrs) lines(name string) []string {
	const maxLines = 32
	all := a.Headers[name]
	return all[max(len(all)-maxLines, 0):]
}
