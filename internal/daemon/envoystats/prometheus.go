package envoystats

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Collector returns a collector of the counts. With milliseconds, the time of calls is in
// milliseconds, as it was in envoyproxy/ratelimit until April 2026, though its name says seconds.
//
// Its metrics are not described beforehand, because series of the same name have different
// labels: key2 only if there is one.
func (s *Stats) Collector(milliseconds bool) prometheus.Collector {
	return &collector{s, milliseconds, s.fixed()}
}

type collector struct {
	stats        *Stats
	milliseconds bool
	fixed        prometheus.Labels // of all series
}

// ownLabels are the labels that the metrics have.
var ownLabels = []string{"domain", "key1", "key2", "err_type", "grpc_method", "le"}

// fixed returns the tags as labels. A name that Prometheus does not allow, or that another label
// has, gets a prefix.
func (s *Stats) fixed() prometheus.Labels {
	all := prometheus.Labels{}
	for _, t := range s.tags {
		name := escape(t.name)
		for strings.HasPrefix(name, "__") || name[0] >= '0' && name[0] <= '9' || slices.Contains(ownLabels, name) || all[name] != "" {
			name = "tag_" + name
		}
		all[name] = t.value
	}
	return all
}

// Describe implements [prometheus.Collector].
func (*collector) Describe(chan<- *prometheus.Desc) {}

// series is a series, and its value.
type series struct {
	name          string
	labels, value []string
	n             float64
	gauge         bool
}

// Collect implements [prometheus.Collector]. Several names may lead to the same series, as those of
// descriptors do that differ in the third key: they are added up.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	all := map[string]*series{}
	c.stats.each(func(name string, n uint64, gauge bool) {
		metric, labels, values := mapped(name)
		key := metric + "\n" + strings.Join(values, "\n")
		one := all[key]
		if one == nil {
			one = &series{name: metric, labels: labels, value: values, gauge: gauge}
			all[key] = one
		}
		one.n += float64(n)
	})
	for _, one := range all {
		kind := prometheus.CounterValue
		if one.gauge {
			kind = prometheus.GaugeValue
		}
		out <- prometheus.MustNewConstMetric(c.desc(one.name, one.labels), kind, one.n, one.value...)
	}
	for m := range c.stats.calls {
		if h := c.histogram(Method(m)); h != nil {
			out <- h
		}
	}
}

// desc describes a metric.
func (c *collector) desc(name string, labels []string) *prometheus.Desc {
	return prometheus.NewDesc(name, "As in envoyproxy/ratelimit.", labels, c.fixed)
}

// histogram returns how long calls of a method took, or nil if there were none.
func (c *collector) histogram(m Method) prometheus.Metric {
	scale := 0.001
	if c.milliseconds {
		scale = 1
	}
	count, sum := uint64(0), 0.0
	buckets := map[float64]uint64{}
	for _, bound := range prometheus.DefBuckets {
		buckets[bound] = 0
	}
	for slot := range c.stats.calls[m].slots {
		n := c.stats.calls[m].slots[slot].Load()
		if n == 0 {
			continue
		}
		took := float64(inMillis(slot)) * scale
		count, sum = count+n, sum+took*float64(n)
		for bound := range buckets {
			if took <= bound {
				buckets[bound] += n
			}
		}
	}
	if count == 0 {
		return nil
	}
	return prometheus.MustNewConstHistogram(c.desc("ratelimit_service_response_time_seconds", []string{"grpc_method"}), count, sum, buckets, methods[m])
}

// mapped returns the name and labels for Prometheus that the built-in mapping of
// envoyproxy/ratelimit makes of a name.
func mapped(name string) (metric string, labels, values []string) {
	if rest, ok := strings.CutPrefix(name, ofErrors); ok {
		return "ratelimit_service_should_rate_limit_error", []string{"err_type"}, []string{rest}
	}
	if rest, ok := strings.CutPrefix(name, ofCalls); ok {
		return "ratelimit_service_total_requests", []string{"grpc_method"}, []string{strings.TrimSuffix(rest, allCalls)}
	}
	rest, ok := strings.CutPrefix(name, ofLimits)
	dot := strings.LastIndexByte(rest, '.')
	if !ok || dot < 0 {
		return escape(name), nil, nil
	}
	what := rest[dot+1:]
	switch parts := strings.SplitN(rest[:dot], ".", 4); {
	case !slices.Contains([]string{"total_hits", "within_limit", "near_limit", "over_limit", "shadow_mode"}, what), len(parts) < 2:
		return escape(name), nil, nil
	case len(parts) == 2:
		return escape(ofLimits + what), []string{"domain", "key1"}, parts
	default:
		return escape(ofLimits + what), []string{"domain", "key1", "key2"}, parts[:3]
	}
}

// escape returns the name of a metric for a name without a mapping.
func escape(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, name)
}
