package rls

import (
	"cmp"
	"math"
	"strconv"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/internal/door/field"
)

// The codes of the protocol.
const (
	codeOK   = 1
	codeOver = 2
)

// answer fills in the answer to a request that is decided.
func (s *Service) answer(w *work, a *answer) error {
	a.code = codeOK
	if w.over {
		a.code = codeOver
	}
	tightest := -1
	for i := range w.items {
		it := &w.items[i]
		t := descriptorStatus{code: codeOK}
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
			denies := t.code == codeOver && !it.quota(s.o.Quota)
			if denies || tightest < 0 || t.remaining < a.statuses[tightest].remaining {
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
	if name := s.o.DecisionHeader; name != "" && w.event.ID != (engine.ID{}) {
		a.headers = append(a.headers, header{name, w.event.ID.String()})
	}
	if !w.over {
		a.over = w.marks()
	}
	if s.o.Metadata {
		var err error
		a.metadata, err = proto.Marshal(s.metadata(w))
		return err
	}
	return nil
}

// marks returns which limits with mark the request is over, for its target.
func (w *work) marks() string {
	var text []byte
	for i := range w.items {
		it := &w.items[i]
		if l := it.limit; it.over && l.Mark {
			d := it.decision
			if l.Requests == 0 {
				d.RetryAfter = stint.Never
			}
			text = field.AppendOver(text, cmp.Or(l.Name, l.Path), it.cost, &d)
		}
	}
	return string(text)
}

// metadata returns what Envoy gets for its logs and other filters: the request, which
// quotas are used up, and the configured metadata of limits that passed.
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
		one := map[string]any{"entries": entries}
		if d.override {
			one["limit"] = overrideText(d)
		}
		if d.own {
			one["hitsAddend"] = float64(d.hits)
		}
		descriptors = append(descriptors, one)
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
		return &structpb.Struct{} // cannot happen: all values come from YAML or protobuf
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

// merge adds members that are missing, also within tables. It does not change or share the
// tables that it merges from.
func merge(into, from map[string]any) {
	for k, v := range from {
		table, isTable := v.(map[string]any)
		if _, ok := into[k]; !ok {
			if isTable {
				v = map[string]any{}
			}
			into[k] = v
		}
		if existing, ok := into[k].(map[string]any); ok && isTable {
			merge(existing, table)
		}
	}
}
