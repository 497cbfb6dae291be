package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	quotav3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// TestEnvoyQuotas has 20 Envoys of two nodes use up a limit in Redis by quotas, as fast as they can, while others ask
// for each request: together they have the limit, to the request, and the metrics say what became of each.
func TestEnvoyQuotas(t *testing.T) {
	t.Parallel()
	const limit, asked = 2000, 100
	dir := writeDomains(t, map[string]string{"shop": fmt.Sprintf("domain: shop\ndescriptors:\n  - key: route\n    rate_limit: {unit: year, requests_per_unit: %d}\n", limit)})
	environ := append(inRedis(t), "STINT_ENVOY_QUOTA_TERM=5s", "STINT_SERVER_REPLICAS=2", "STINT_SERVER_ADMIN_ADDRESS=127.0.0.1:0")
	nodes := []*envoyServer{serveEnvoy(t, dir, environ...), serveEnvoy(t, dir, environ...)}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for i := range asked {
		nodes[i%2].same(t, "shop: route=search", fmt.Sprintf("OK: OK %d", limit-1-i))
	}
	var passed atomic.Int64
	var fleet sync.WaitGroup
	for i := range 20 {
		fleet.Go(func() {
			if err := greedy(ctx, nodes[i%2].peer, &passed); err != nil {
				t.Errorf("Envoy %d: %v", i, err)
			}
		})
	}
	fleet.Wait()
	if n := passed.Load(); n != limit-asked {
		t.Errorf("%d have passed; want the %d that were left", n, limit-asked)
	}
	sums := map[string]int{}
	for _, n := range nodes {
		_, text := get(t, n.url("admin")+"/metrics")
		for line := range strings.Lines(text) {
			var what string
			var count int
			if _, err := fmt.Sscanf(line, `stint_envoy_quota_requests_total{limit="shop.route",requests=%q} %d`, &what, &count); err == nil {
				sums[what] += count
			}
		}
	}
	if sums["assigned"]-sums["back"] != limit-asked || sums["passed"] != limit-asked || sums["unassigned"] != 0 || sums["denied"] == 0 {
		t.Errorf("metrics: %v", sums)
	}
}

// greedy is an Envoy that spends what it is assigned at once, reports that, and wants more, until it is told that there
// is none.
func greedy(ctx context.Context, p *peer, passed *atomic.Int64) error {
	stream, err := quotav3.NewRateLimitQuotaServiceClient(p.conn).StreamRateLimitQuotas(ctx)
	if err != nil {
		return err
	}
	id := &quotav3.BucketId{Bucket: map[string]string{"route": "search"}}
	report := func(allowed uint64) error {
		return stream.Send(&quotav3.RateLimitQuotaUsageReports{Domain: "shop", BucketQuotaUsages: []*quotav3.RateLimitQuotaUsageReports_BucketQuotaUsage{{
			BucketId: id, TimeElapsed: durationpb.New(time.Second / 10), NumRequestsAllowed: allowed, NumRequestsDenied: 10,
		}}})
	}
	if err := report(0); err != nil {
		return err
	}
	for closed := false; !closed; {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, a := range m.GetBucketAction() {
			s := a.GetQuotaAssignmentAction().GetRateLimitStrategy()
			closed = closed || s.GetBlanketRule() == typev3.RateLimitStrategy_DENY_ALL
			n := s.GetTokenBucket().GetMaxTokens()
			passed.Add(int64(n))
			if err := report(uint64(n)); err != nil {
				return err
			}
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
