package rls

import (
	"context"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/stintdev/stint/grpclimit/descriptor"
)

var _ rlsv3.RateLimitServiceServer = (*Service)(nil)

// ShouldRateLimit implements the service of the protocol.
func (s *Service) ShouldRateLimit(ctx context.Context, m *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	w := s.begin()
	defer s.end(w)
	w.q.fromProto(m)
	if err := s.decide(ctx, w); err != nil {
		return nil, err
	}
	var a answer
	if err := s.answer(w, &a); err != nil {
		return nil, err
	}
	out := &rlsv3.RateLimitResponse{}
	return out, proto.Unmarshal(a.append(make([]byte, 0, a.size())), out)
}

func (q *request) fromProto(m *rlsv3.RateLimitRequest) {
	q.domain, q.hits = m.GetDomain(), m.GetHitsAddend()
	if len(m.GetDescriptors()) > maxDescriptors {
		q.wrong = tooManyDescriptors
		return
	}
	for i, d := range m.GetDescriptors() {
		if len(d.GetEntries()) > maxEntries {
			q.wrong = place(i) + tooManyEntries
			return
		}
		a := asked{from: len(q.entries), negative: d.GetIsNegativeHits()}
		for _, e := range d.GetEntries() {
			q.entries = append(q.entries, descriptor.Entry{Key: e.GetKey(), Value: e.GetValue()})
		}
		a.to = len(q.entries)
		if l := d.GetLimit(); l != nil {
			a.override, a.requests, a.unit, a.multiplier = true, l.GetRequestsPerUnit(), int32(l.GetUnit()), l.GetUnitMultiplier().GetValue()
		}
		if h := d.GetHitsAddend(); h != nil {
			a.own, a.hits = true, h.GetValue()
		}
		q.descriptors = append(q.descriptors, a)
	}
}
