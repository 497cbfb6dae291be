package record

import (
	"context"
	"errors"
	"fmt"

	"github.com/stintdev/stint/internal/kit/disk"
)

// ErrNoRoom means that the disk has no room for the record, which leaves the rest to others.
var ErrNoRoom = errors.New("there is no room for the record")

// enough fails if the filesystem of a file has less than minFree bytes left.
func enough(file string, minFree int64) error {
	if file == "" || minFree == 0 {
		return nil
	}
	if free, ok := disk.Free(file); ok && free < minFree {
		return fmt.Errorf("%w: the disk of %s has %d bytes left, and %d are kept free for rules, users and tokens (server.record.min_free)", ErrNoRoom, file, free, minFree)
	}
	return nil
}

// Room fails with [ErrNoRoom] if the disk has less than [StoreOptions.MinFree] left. It has
// nothing to say about PostgreSQL, which others look after.
func (s *Store) Room() error { return enough(s.db.File(), s.minFree) }

// Size returns about how many bytes events and roll-ups take. PostgreSQL does not give back the
// room of deleted events; above a limit, which may be 0, they are not counted.
func (s *Store) Size(ctx context.Context, limit int64) (int64, error) {
	n, err := s.tables.size(ctx, limit)
	return n, s.wrap("size", err)
}

// RowBytes returns about how many bytes an event of a month takes.
func (s *Store) RowBytes(ctx context.Context, m Month) (int64, error) {
	n, err := s.tables.rowBytes(ctx, m)
	return max(1, n), s.wrap("size", err)
}

// Reclaim lets the room of deleted events of a month be used again.
func (s *Store) Reclaim(ctx context.Context, m Month) error {
	return s.wrap("reclaim "+m.String(), s.tables.reclaim(ctx, m))
}
