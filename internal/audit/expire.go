package audit

import (
	"context"
	"errors"
	"time"
)

// Expire deletes the months of which all is older than the retention, for good.
func (s *Store) Expire(ctx context.Context, retention time.Duration) error {
	months, err := s.Months(ctx)
	if err != nil {
		return err
	}
	for _, m := range months {
		if m.Month.End().After(s.o.Now().Add(-retention)) {
			continue
		}
		if err := s.Drop(ctx, m.Month, m.Events); err != nil && !errors.Is(err, ErrChanged) { // what comes late goes the next time
			return err
		}
	}
	return nil
}
