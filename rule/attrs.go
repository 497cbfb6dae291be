package rule

import "net/netip"

// Attrs is a request, as far as rules look at it.
type Attrs struct {
	// Method is as [Set.Method] returns it: it may name a counter, and clients send
	// what they like.
	Method string
	// Path is as it came; [Set.Match] brings it into one form.
	Path string
	// Headers have canonical names, as http.Header has. Of the lines of one header
	// the last 32 are looked at.
	Headers map[string][]string
	// Trusted says that the headers come through a trusted proxy. Otherwise anyone
	// may have written them: they cannot say what a request costs, and a counter
	// that is named by one is also named by the client's address, so that no one
	// can use up another's.
	Trusted bool

	IP  netip.Addr   // of the client, unmapped, without a zone
	Net netip.Prefix // what is counted of it: all of an IPv4 address, a part of an IPv6 one

	User, Tenant, APIKey, Tier string
	Claims                     map[string]string

	// KeyLimits and UserLimits are what the API key and the user have in place of
	// what the tier or the rule says, by the name of the limit.
	KeyLimits, UserLimits Values

	// Cost, if it is not 0, is what the request costs whatever rules say.
	Cost int64
}

// lines returns the values of a header, one for each line. Those that come last are
// kept: what a proxy adds comes after what a client has sent.
func (a *Attrs) lines(name string) []string {
	const most = 32
	all := a.Headers[name]
	return all[max(len(all)-most, 0):]
}
