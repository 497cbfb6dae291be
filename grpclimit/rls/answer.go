package rls

import (
	"math"
	"strconv"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// The codes of the protocol.
const (
	codeOK   = 1
	codeOver = 2
)

// answer writes what Envoy is told.
func (s *Service) answer(w *work, a *answer) error {
	a.code = codeOK
	if w.over {
		a.code = codeOver
	}
	tightest := -1
	for i := range w.items {
		it := &w.items[i]
		t := told{code: codeOK}
		switch l := it.limit; {
		case l == nil:
		case l.Unlimited:
			t.remaining = math.MaxUint32
		default:
			t.limited, t.requests, t.unit, t.name, t.multiplier = true, l.Requests, int32(l.Unit), l.Name, l.Multiplier
			t.reset = it.reset(w.began)
			switch {
			case !it.over:
				t.remaining = uint32(min(max(it.decision.Remaining, 0), math.MaxUint32))
			case !l.Shadow:
				t.code = codeOver
			}
			refuses := t.code == codeOver && !it.quota(s.o.Quota)
			if refuses || tightest < 0 || t.remaining < a.statuses[tightest].remaining {
				tightest = i
			}
		}
		a.statuses = append(a.statuses, t)
	}
	if h := s.o.Headers; h != nil && tightest >= 0 {
		t := &a.statuses[tightest]
		a.headers = append(a.headers,
			header{h.Limit, strconv.FormatUint(uint64(t.requests), 10)},
			header{h.Remaining, strconv.FormatUint(uint64(t.remaining), 10)},
			header{h.Reset, strconv.FormatInt(t.reset, 10)})
	}
	if s.o.Metadata {
		var err error
		a.metadata, err = proto.Marshal(s.metadata(w))
		return err
	}
	return nil
}

// metadata is what Envoy is told for its logs and other filters: what was asked, which
// quotas are used up, and what the configuration says of limits that passed.
func (s *Service) metadata(w *work) *structpb.Struct {
	var descriptors, over []any
	quota := false
	passed := map[string]any{}
	for i := range w.items {
		it, d := &w.items[i], &w.q.descriptors[i]
		var entries []any
		for _, e := range w.q.of(i) {
			entries = append(entries, e.Key+"="+e.Value)
		}
		told := map[string]any{"entries": entries}
		if d.override {
			told["limit"] = overrideText(d)
		}
		if d.own {
			told["hitsAddend"] = float64(d.hits)
		}
		descriptors = append(descriptors, told)
		if it.limit == nil || it.limit.Unlimited {
			continue
		}
		quota = quota || it.limit.Quota
		if !it.over || it.limit.Shadow {
			merge(passed, it.limit.Metadata)
		} else if it.quota(s.o.Quota) {
			over = append(over, float64(i))
		}
	}
	fields := map[string]any{"domain": w.q.domain, "descriptors": descriptors, "quotaModeEnabled": quota}
	if w.q.hits > 0 {
		fields["hitsAddend"] = float64(w.q.hits)
	}
	if over != nil {
		fields["quotaModeViolations"] = over
	}
	if len(passed) > 0 {
		fields["metadata"] = passed
	}
	m, err := structpb.NewStruct(fields)
	if err != nil {
		return &structpb.Struct{} // a configuration holds nothing that it could not
	}
	return m
}

func overrideText(d *asked) string {
	text := ""
	if d.requests > 0 {
		text = "requests_per_unit:" + strconv.FormatUint(uint64(d.requests), 10) + " "
	}
	return text + "unit:" + typev3.RateLimitUnit(d.unit).String()
}

// merge adds what is not there yet, also within tables.
func merge(into, from map[string]any) {
	for k, v := range from {
		have, ok := into[k]
		table, isTable := v.(map[string]any)
		if !ok {
			if isTable { // which is the configuration's
				fresh := map[string]any{}
				merge(fresh, table)
				v = fresh
			}
			into[k] = v
			continue
		}
		if there, ok := have.(map[string]any); ok && isTable {
			merge(there, table)
		}
	}
}
