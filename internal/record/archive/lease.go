package archive

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/stintdev/stint/internal/kit/blob"
)

// lease is who may work on an archive, and until when. Leases are numbered. The one with the
// highest number is in effect and never deleted, so that only one of several processes can take
// over an ended lease.
type lease struct {
	Holder string    `json:"holder"`
	Until  time.Time `json:"until"`

	a      *Archive
	number int
}

const leases = "lease/"

func leaseName(number int) string { return fmt.Sprintf("%s%08d.json", leases, number) }

// newest returns the lease in effect, and the names of all. Without any it is number 0.
func (a *Archive) newest(ctx context.Context) (l lease, names []string, err error) {
	names, err = a.names(ctx, leases)
	if err != nil || len(names) == 0 {
		return l, nil, err
	}
	name := names[len(names)-1]
	text, err := a.get(ctx, name, maxText, 0)
	if errors.Is(err, blob.ErrNotFound) {
		return l, nil, fmt.Errorf("%w: it has just taken over", ErrBusy)
	}
	if err != nil {
		return l, nil, err
	}
	if _, err = fmt.Sscanf(name, leases+"%d.json", &l.number); err == nil {
		err = json.Unmarshal(text, &l)
	}
	if err != nil {
		return l, nil, fmt.Errorf("%s is not a lease: delete it if no process works on the archive: %w", name, err)
	}
	return l, names, nil
}

// acquire takes the archive, or fails with ErrBusy.
func (a *Archive) acquire(ctx context.Context) (*lease, error) {
	last, names, err := a.newest(ctx)
	if err != nil {
		return nil, err
	}
	now := a.o.Now()
	if last.Until.After(now) {
		return nil, fmt.Errorf("%w: %s, until %v", ErrBusy, last.Holder, last.Until.Format(time.RFC3339))
	}
	l := &lease{Holder: a.o.Node, Until: now.Add(leaseTime).UTC(), a: a, number: last.number + 1}
	text, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	if err := a.bucket.PutIfAbsent(ctx, leaseName(l.number), text); err != nil {
		if errors.Is(err, blob.ErrExists) {
			err = fmt.Errorf("%w: it has just begun", ErrBusy)
		}
		return nil, err
	}
	// A slow process may have taken a number that was in effect long ago.
	if err := l.counts(ctx); err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := a.bucket.Delete(ctx, name); err != nil {
			return nil, errors.Join(err, l.release(ctx))
		}
	}
	return l, nil
}

// counts returns an error if another process has taken over.
func (l *lease) counts(ctx context.Context) error {
	switch newest, _, err := l.a.newest(ctx); {
	case err != nil:
		return err
	case newest.number != l.number:
		return fmt.Errorf("%w: %s has taken over", ErrBusy, newest.Holder)
	}
	return nil
}

// renew makes sure that the lease lasts for the next part or batch. Most calls have nothing to
// do.
func (l *lease) renew(ctx context.Context) error {
	now := l.a.o.Now()
	if l.Until.Sub(now) > leaseTime/2 {
		return nil
	}
	if !l.Until.After(now) {
		return fmt.Errorf("%w: the lease ended at %v, because a step took too long", ErrBusy, l.Until.Format(time.RFC3339))
	}
	return l.put(ctx, now.Add(leaseTime))
}

// release ends the lease, even if ctx has ended.
func (l *lease) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return l.put(ctx, time.Time{})
}

func (l *lease) put(ctx context.Context, until time.Time) error {
	if err := l.counts(ctx); err != nil {
		return err
	}
	l.Until = until.UTC()
	text, err := json.Marshal(l)
	if err == nil {
		err = l.a.bucket.Put(ctx, leaseName(l.number), bytes.NewReader(text))
	}
	return err
}
