//go:build gateway || reference

package e2e_test

import (
	"net/netip"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// arrival is a request that Envoy has received.
type arrival struct {
	headers map[string]string
	address netip.Addr
	tokens  uint64 // in the metadata of the response
}

// describe returns the descriptor of a limit of a route, or nil if it has none.
func (r *arrival) describe(t *testing.T, l *routev3.RateLimit) *commonv3.RateLimitDescriptor {
	t.Helper()
	d := new(commonv3.RateLimitDescriptor)
	add := func(key, value string) {
		value = strings.ReplaceAll(value, "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%", r.address.String())
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	for _, action := range l.GetActions() {
		switch a := action.GetActionSpecifier().(type) {
		case *routev3.RateLimit_Action_GenericKey_:
			add(a.GenericKey.GetDescriptorKey(), a.GenericKey.GetDescriptorValue())
		case *routev3.RateLimit_Action_RequestHeaders_:
			value, ok := r.headers[a.RequestHeaders.GetHeaderName()]
			if !ok {
				return nil
			}
			add(a.RequestHeaders.GetDescriptorKey(), value)
		case *routev3.RateLimit_Action_HeaderValueMatch_:
			h := a.HeaderValueMatch.GetHeaders()[0]
			if (r.headers[h.GetName()] == h.GetStringMatch().GetExact()) != a.HeaderValueMatch.GetExpectMatch().GetValue() {
				return nil
			}
			add(a.HeaderValueMatch.GetDescriptorKey(), a.HeaderValueMatch.GetDescriptorValue())
		case *routev3.RateLimit_Action_RemoteAddressMatch_:
			m := a.RemoteAddressMatch.GetAddressMatcher()
			c := m.GetRanges()[0]
			network := netip.PrefixFrom(netip.MustParseAddr(c.GetAddressPrefix()), int(c.GetPrefixLen().GetValue()))
			if network.Contains(r.address) == m.GetInvertMatch() {
				return nil
			}
			add(a.RemoteAddressMatch.GetDescriptorKey(), a.RemoteAddressMatch.GetDescriptorValue())
		default:
			t.Fatalf("what does Envoy send for %v?", action)
		}
	}
	if h := l.GetHitsAddend(); h != nil {
		d.HitsAddend = h.GetNumber()
		if h.GetFormat() == "%DYNAMIC_METADATA(io.test:tokens)%" {
			d.HitsAddend = wrapperspb.UInt64(r.tokens)
		}
	}
	return d
}
