package daemon

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/stintdev/stint/layer"
)

// returns adds up what becomes of the units of an outage, and tells of it once. A store is charged in many steps, since its
// servers come back one after the other, and may go away again.
type returns struct {
	tell func(layer.Return)

	mu          sync.Mutex
	sum         layer.Return
	quiet, late *time.Timer // nil: there is nothing to tell
}

const (
	returnsQuiet = time.Second      // how long nothing has been charged when it is told
	returnsLate  = 30 * time.Second // how late it is told at most
)

// tellReturns returns what logs the units of outages with a message. What is not told yet is told when the daemon stops.
func (d *Daemon) tellReturns(message string, args ...any) func(layer.Return) {
	told := &returns{tell: func(r layer.Return) {
		level := slog.LevelInfo
		if r.Lost > 0 {
			level = slog.LevelWarn
		}
		all := append(slices.Clip(args), "charged", r.Paid, "recovered", r.Expired, "never charged", r.Lost)
		d.log.Log(context.Background(), level, message, all...) //nolint:forbidigo // it belongs to no request
	}}
	d.returns = append(d.returns, told)
	return told.add
}

func (r *returns) add(x layer.Return) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sum.Paid, r.sum.Lost, r.sum.Expired = r.sum.Paid+x.Paid, r.sum.Lost+x.Lost, r.sum.Expired+x.Expired
	if r.quiet == nil {
		r.quiet, r.late = time.AfterFunc(returnsQuiet, r.flush), time.AfterFunc(returnsLate, r.flush)
		return
	}
	r.quiet.Reset(returnsQuiet)
}

func (r *returns) flush() {
	r.mu.Lock()
	sum := r.sum
	if r.quiet != nil {
		r.quiet.Stop()
		r.late.Stop()
	}
	r.sum, r.quiet, r.late = layer.Return{}, nil, nil
	r.mu.Unlock()
	if sum != (layer.Return{}) {
		r.tell(sum)
	}
}
