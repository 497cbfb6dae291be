package rollup

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/internal/record/query"
)

// Clients that were seen in traffic are in stint_seen, by name, so that a search finds those
// that the catalog does not have. The node that counts a minute writes the names in it that
// it has not written on the same day.

// Tests use smaller ones.
var (
	// maxNewSeen is how many names of a minute are written. The rest are written when they
	// come again.
	maxNewSeen = 10_000
	// maxKnownSeen is how many names that were written are remembered. Over it, all are
	// forgotten, and written again.
	maxKnownSeen = 200_000
	// maxSeen is how many names are kept. Over it, the half that was seen last is.
	maxSeen = 2_000_000
)

// keepSeen is how long a name is kept after it was seen last.
const keepSeen = 90 * day

// seen are the names of clients that were seen, by kind.
type seen struct {
	day   time.Time // of known
	known [4]map[string]struct{}
	fresh [4][]string // which are not written yet
	count int         // of fresh
	swept time.Time   // the day on which old names were deleted
}

// note notes the names of an event.
func (s *seen) note(names *[4]sql.RawBytes) {
	for kind, name := range names {
		if len(name) == 0 || s.count >= maxNewSeen {
			continue
		}
		if _, ok := s.known[kind][string(name)]; ok {
			continue
		}
		if s.known[kind] == nil {
			s.known[kind] = map[string]struct{}{}
		}
		text := string(name)
		s.known[kind][text] = struct{}{}
		s.fresh[kind] = append(s.fresh[kind], text)
		s.count++
	}
}

// turn forgets what was known if there is too much of it, or a new day has begun.
func (s *seen) turn(at time.Time) {
	known := 0
	for kind := range s.known {
		known += len(s.known[kind])
	}
	if of := at.Truncate(day); known > maxKnownSeen || of.After(s.day) {
		s.known, s.day = [4]map[string]struct{}{}, of
	}
}

// putSeen writes the names that are new in a minute.
func (s *Store) putSeen(ctx context.Context, tx *sql.Tx, start time.Time) error {
	fresh, at := s.seen.fresh, s.db.Time(start)
	s.seen.fresh, s.seen.count = [4][]string{}, 0
	defer s.seen.turn(start.Add(time.Minute))
	for kind, names := range fresh {
		for len(names) > 0 {
			n := min(len(names), rowsAtOnce)
			var args []any
			for _, name := range names[:n] {
				args = append(args, kind, name, at)
			}
			names = names[n:]
			_, err := tx.ExecContext(ctx, "INSERT INTO stint_seen (kind, name, at) VALUES "+placeholders(n, 3)+
				" ON CONFLICT (kind, name) DO UPDATE SET at = excluded.at WHERE stint_seen.at < excluded.at", args...)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// forgetSeen deletes names that were not seen for long, once a day, and returns how many.
func (s *Store) forgetSeen(ctx context.Context, tx *sql.Tx) (int, error) {
	today := s.o.Now().Truncate(day)
	if s.seen.swept.Equal(today) {
		return 0, nil
	}
	before := today.Add(-keepSeen)
	var last database.Stamp
	err := tx.QueryRowContext(ctx, "SELECT max(at) FROM (SELECT at FROM stint_seen ORDER BY at DESC LIMIT 1 OFFSET $1) AS over", maxSeen).Scan(&last)
	if err == nil && !last.IsZero() { // there are too many
		if err = tx.QueryRowContext(ctx, "SELECT max(at) FROM (SELECT at FROM stint_seen ORDER BY at DESC LIMIT 1 OFFSET $1) AS half", maxSeen/2).Scan(&last); err == nil {
			before = query.Later(before, last.Time)
		}
	}
	if err != nil {
		return 0, err
	}
	result, err := tx.ExecContext(ctx, "DELETE FROM stint_seen WHERE at < $1", s.db.Time(before))
	if err != nil {
		return 0, err
	}
	s.seen.swept = today
	n, err := result.RowsAffected()
	return int(n), err
}

// SeenQuery selects clients that sent requests.
type SeenQuery struct {
	Kind   string // user, tenant, key or ip
	Prefix string // of the name, whatever the case of A to Z
	After  string // only names after this one, which is the last of the page before
	Limit  int    // from 1 to 1,000
}

// Seen is a client that sent requests.
type Seen struct {
	Name string
	Last time.Time // to a day
}

// Seen returns clients by name: those that sent requests within 90 days. A client is there
// as soon as the minute of its first request is rolled up. If a minute has more than 10,000
// new names, the others are left out until they come again, and of more than 2 million names
// only those that were seen last are kept.
func (s *Store) Seen(ctx context.Context, q SeenQuery) ([]Seen, error) {
	var p strict.Report
	query.CheckLimit(&p, &q.Limit, 100, 1000)
	query.CheckWord(&p, "kind", q.Kind, kinds)
	if err := p.Problems.Err(); err != nil {
		return nil, err
	}
	var w query.Where
	for kind, name := range kinds {
		if name == q.Kind {
			w.And("kind = ?", kind)
		}
	}
	prefix := foldCase(q.Prefix)
	if q.After != "" {
		w.And("lower(name) >= ? AND (lower(name), name) > (?, ?)", foldCase(q.After), foldCase(q.After), q.After)
	} else {
		w.And("lower(name) >= ?", prefix)
	}
	var out []Seen
	err := query.Reading(ctx, s.db, func(tx *sql.Tx) error {
		return query.Each(ctx, tx, func(rows *sql.Rows) error {
			var one Seen
			var at database.Stamp
			if err := rows.Scan(&one.Name, &at); err != nil {
				return err
			}
			one.Last = at.Time
			out = append(out, one)
			return nil
		}, "SELECT name, at FROM stint_seen WHERE "+w.String()+" ORDER BY kind, lower(name), name LIMIT "+strconv.Itoa(q.Limit), w.Args...)
	})
	if err != nil {
		return nil, s.wrap(fmt.Sprintf("find a %s", q.Kind), err)
	}
	for i := range out { // they are sorted
		if !strings.HasPrefix(foldCase(out[i].Name), prefix) {
			return out[:i], nil
		}
	}
	return out, nil
}

// foldCase makes A to Z lower case, as lower() does in SQL without a locale.
func foldCase(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, text)
}
