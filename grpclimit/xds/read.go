package xds

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	config "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stintdev/stint/grpclimit/descriptor"
)

// read converts resources to domains. Those without a name get a number.
func read(resources []*anypb.Any) ([]descriptor.Named, error) {
	out := make([]descriptor.Named, 0, len(resources))
	seen := make(map[string]int, len(resources))
	for i, r := range resources {
		var c config.RateLimitConfig
		if err := r.UnmarshalTo(&c); err != nil {
			return nil, fmt.Errorf("resource %d of %d: %w", i+1, len(resources), err)
		}
		name := c.GetName()
		if name == "" {
			name = "resource " + strconv.Itoa(i+1)
		}
		if first, ok := seen[name]; ok {
			return nil, fmt.Errorf("resource %d of %d: the name %q is already used by resource %d", i+1, len(resources), name, first)
		}
		seen[name] = i + 1
		descriptors, err := readDescriptors(c.GetDescriptors())
		if err != nil {
			return nil, fmt.Errorf("resource %d of %d: %q: %w", i+1, len(resources), name, err)
		}
		out = append(out, descriptor.Named{Name: name, Domain: descriptor.Domain{Domain: c.GetDomain(), Descriptors: descriptors}})
	}
	return out, nil
}

func readDescriptors(in []*config.RateLimitDescriptor) ([]descriptor.Descriptor, error) {
	if len(in) == 0 {
		return nil, nil
	}
	out := make([]descriptor.Descriptor, len(in))
	for i, d := range in {
		below, err := readDescriptors(d.GetDescriptors())
		if err == nil {
			out[i] = descriptor.Descriptor{
				Key: d.GetKey(), Value: d.GetValue(), RateLimit: readLimit(d.GetRateLimit()), Descriptors: below,
				ShadowMode: d.GetShadowMode(), DetailedMetric: d.GetDetailedMetric(),
			}
			err = readNewer(&out[i], d.ProtoReflect().GetUnknown())
		}
		if err != nil {
			return nil, fmt.Errorf("descriptor %d, %q: %w", i+1, d.GetKey(), err)
		}
	}
	return out, nil
}

// readNewer reads newer fields, which the generated code does not have yet.
func readNewer(d *descriptor.Descriptor, b []byte) error {
	const quotaMode, metadata = 7, 8
	var s *structpb.Struct
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeField(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		_, _, tag := protowire.ConsumeTag(b)
		value := b[tag:n]
		b = b[n:]
		switch {
		case number == quotaMode && kind == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(value)
			d.QuotaMode = v != 0
		case number == quotaMode:
			return errors.New("quota_mode: want a bool")
		case number == metadata && kind == protowire.BytesType:
			if s == nil {
				s = new(structpb.Struct)
			}
			v, _ := protowire.ConsumeBytes(value)
			if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(v, s); err != nil {
				return fmt.Errorf("metadata: want a google.protobuf.Struct: %w", err)
			}
		case number == metadata:
			return errors.New("metadata: want a google.protobuf.Struct")
		}
	}
	if s != nil {
		d.Metadata = s.AsMap()
	}
	return nil
}

func readLimit(p *config.RateLimitPolicy) *descriptor.RateLimit {
	if p == nil {
		return nil
	}
	out := &descriptor.RateLimit{RequestsPerUnit: p.GetRequestsPerUnit(), Unlimited: p.GetUnlimited(), Name: p.GetName()}
	// Not by the generated code, which lacks the longer units.
	if u := descriptor.Unit(p.GetUnit()); u != descriptor.Unknown {
		out.Unit = strings.ToLower(u.String())
	}
	for _, r := range p.GetReplaces() {
		out.Replaces = append(out.Replaces, descriptor.Replace{Name: r.GetName()})
	}
	return out
}
