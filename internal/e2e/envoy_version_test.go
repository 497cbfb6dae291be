package e2e_test

import (
	"os"
	"slices"
	"strings"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stintdev/stint/grpclimit/descriptor"
)

// isNewer reports whether the reference is that of July 2026. The module bench/ratelimit has that of January, because
// the proxy for modules that it was made with does not have the later commit: STINT_REFERENCE names a program that was
// built from a checkout.
func isNewer() bool { return os.Getenv("STINT_REFERENCE") != "" }

// The differences from only one version, by their keys.
var ofJanuary, ofJuly = []string{"quota", "newer"}, []string{"metadata"}

// exists reports whether the reference has the difference.
func (d *difference) exists() bool {
	if isNewer() {
		return !slices.Contains(ofJanuary, d.key)
	}
	return !slices.Contains(ofJuly, d.key)
}

func (x *exchange) metadata() bool {
	fields := x.want.GetDynamicMetadata().GetFields()
	if fields["quotaModeEnabled"] != nil {
		return false
	}
	quota := false
	x.each(func(i int, _ *rlsv3.RateLimitResponse_DescriptorStatus) bool {
		quota = quota || x.isQuota(i)
		return false
	})
	fields["quotaModeEnabled"] = structpb.NewBoolValue(quota)
	return true
}

// mergePassed sets the metadata of the limits that have passed, of which the first counts.
func (x *exchange) mergePassed() {
	fields := x.want.GetDynamicMetadata().GetFields()
	delete(fields, "metadata")
	merged := map[string]*structpb.Value{}
	x.each(func(i int, s *rlsv3.RateLimitResponse_DescriptorStatus) bool {
		if l := x.limits[i]; l != nil && x.q.GetDescriptors()[i].GetLimit() == nil && s.GetCode() == rlsv3.RateLimitResponse_OK {
			for k, v := range l.Metadata {
				if merged[k] == nil {
					merged[k] = structpb.NewStringValue(v.(string))
				}
			}
		}
		return false
	})
	if len(merged) > 0 {
		fields["metadata"] = structpb.NewStructValue(&structpb.Struct{Fields: merged})
	}
}

// addNewer adds to descriptors what only the newer reference has: metadata, and a * inside a value. The metadata has no
// objects, because that reference merges them into those of its configuration.
func (m maker) addNewer(all []descriptor.Descriptor, depth int) []descriptor.Descriptor {
	if !isNewer() {
		return all
	}
	for _, value := range []string{"x*1", "*1", "y*q*1"} {
		if m.chance(30) {
			d := m.descriptor("b", value, depth)
			d.ShareThreshold = m.chance(30)
			all = append(all, d)
		}
	}
	for i := range all {
		if m.chance(40) {
			all[i].Metadata = map[string]any{pick(m, "plan", "team"): pick(m, "a", "b"), strings.ToUpper(all[i].Key[:1]): "c"}
		}
	}
	return all
}
