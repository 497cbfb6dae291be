package region

import (
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/layer"
)

// centralBudget is how long a decision may wait for the central region: a message around the world, and a retry.
const centralBudget = time.Second

// CentralOptions are the options of [Central].
type CentralOptions struct {
	// Local is where this node counts while the central region is out of reach: a memory store of its own.
	Local stint.Store
	// Weight is the share of this region, of Weights, and Nodes returns how many nodes have it together.
	Weight, Weights int
	Nodes           func() int
	// OnChange is called when the breaker opens, and this node decides by itself, or closes.
	OnChange func(open bool, reason string)
	// OnReturn is called after the central region has come back and was charged.
	OnReturn func(layer.Return)
	Leases   *layer.LeaseMeter                 // nil: leases are not counted
	Random   func(time.Duration) time.Duration // as in [layer.RetryOptions]
}

// Central returns the counters of the central region with the layers that a distant store needs, with leases
// foremost: the distance is then paid ahead of requests.
//
// While that region can be reached, no more is admitted than the limit. While it cannot, this node admits its share
// of what remained when it last heard: the weight of its region, divided by the nodes. As the others go on, all
// regions that are cut off together may then admit their shares of what remained in addition. A limit that must not
// be exceeded has the fail mode [stint.FailClosed].
func Central(far stint.Store, o CentralOptions) (stint.Store, error) {
	return layer.New(far, layer.Options{
		Retry: layer.RetryOptions{Budget: centralBudget, Random: o.Random},
		Breaker: layer.BreakerOptions{
			Slow:     centralBudget * 4 / 5,
			Random:   o.Random,
			OnChange: func(c layer.Change) { o.OnChange(c.To == layer.BreakerOpen, c.Reason) },
		},
		Fallback: &layer.FallbackOptions{
			Local: o.Local, OnReturn: o.OnReturn,
			Replicas: func() int { return (o.Weights*o.Nodes() + o.Weight - 1) / o.Weight },
		},
		Lease: layer.LeaseOptions{Meter: o.Leases},
	})
}
