package daemon

import "github.com/stintdev/stint/grpclimit/rlqs"

// collectQuotas collects the metrics of Envoy's quotas.
func collectQuotas(q *rlqs.Server, gauge, total func(name string, n float64, labels ...string), count func(name string, n uint64, labels ...string)) {
	for limit, n := range q.Stats() {
		for what, n := range map[string]int64{
			"assigned": n.Assigned, "passed": n.Passed, "denied": n.Denied, "back": n.Back, "unassigned": n.Unassigned,
		} {
			count("stint_envoy_quota_requests_total", uint64(n), limit, what)
		}
	}
	s := q.State()
	gauge("stint_envoy_quota_streams", float64(s.Streams))
	gauge("stint_envoy_quota_buckets", float64(s.Buckets))
	total("stint_envoy_quota_refused_total", float64(s.Refused))
}
