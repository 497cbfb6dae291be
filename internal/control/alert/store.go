package alert

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/kit/database"
	"github.com/stintdev/stint/internal/kit/strict"
)

const (
	// MaxWaiting is how many messages may wait for a webhook.
	MaxWaiting = 1000
	// MaxKept is how many delivered messages and how many dead letters of a webhook are kept, and how many causes that are over.
	MaxKept = 1000
	// keptFor is how long they are kept.
	keptFor = 30 * 24 * time.Hour
	// MaxSilences is how many silences there may be.
	MaxSilences = 200
)

// ErrNotFound means that there is no such cause, silence or delivery, or that it is over.
var ErrNotFound = errors.New("not found")

// ErrOvertaken means that a message is not sent again, because a newer one about the same cause was delivered.
var ErrOvertaken = errors.New("a newer message about the same cause was delivered")

// Store has the state of alerts, in a database whose schema is up to date.
type Store struct {
	db  *database.DB
	now func() time.Time // nil: the clock of the database
}

// NewStore returns the store in a database, which is closed by who has opened it. Tests set a clock.
func NewStore(db *database.DB, now func() time.Time) *Store { return &Store{db, now} }

// Time returns the time by which alerts are evaluated.
func (s *Store) Time(ctx context.Context) (time.Time, error) {
	if s.now != nil {
		return s.now().UTC(), nil
	}
	var at database.Stamp
	err := s.db.Read.QueryRowContext(ctx, "SELECT "+s.db.Now()).Scan(&at)
	return at.Time, s.wrap("read the clock", err)
}

func (s *Store) wrap(doing string, err error) error {
	if err == nil || errors.Is(err, ErrNotFound) {
		return err
	}
	if problems := strict.Problems(nil); errors.As(err, &problems) {
		return err
	}
	return fmt.Errorf("alerts: %s: %w", doing, s.db.Wrap(err))
}

// querier is a database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func each(ctx context.Context, q querier, scan func(*sql.Rows) error, query string, args ...any) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Query selects causes or deliveries. Empty fields select all.
type Query struct {
	Alert, Webhook string
	State          string // of deliveries: waiting, delivered or dead; of causes: pending, firing or resolved
	Before         string // the value that the last page returned
	Limit          int    // from 1 to 1000
}

const causeColumns = "SELECT id, body, acked_at, acked_by, ack_note FROM stint_alert_causes "

func scanCause(rows *sql.Rows) (*Cause, error) {
	var id, body string
	var acked database.Stamp
	var by, note sql.NullString
	if err := rows.Scan(&id, &body, &acked, &by, &note); err != nil {
		return nil, err
	}
	c := new(Cause)
	if err := json.Unmarshal([]byte(body), c); err != nil {
		return nil, fmt.Errorf("the cause %s cannot be read: a newer version has written it: %w", strict.Quote(id), err)
	}
	c.AckedAt, c.AckedBy, c.AckNote = acked.Time, by.String, note.String
	return c, nil
}

// Causes returns causes, the latest first: those that are pending or fire, or those of a phase. Those that are resolved have fired
// before. The second result is the Before of the next page.
func (s *Store) Causes(ctx context.Context, q Query) (out []*Cause, next string, err error) {
	where, args := "WHERE phase <> 'resolved'", []any{}
	if q.State != "" {
		where, args = "WHERE phase = $1", []any{q.State}
	}
	if q.Before != "" {
		at, id, ok := strings.Cut(q.Before, ".")
		micros, err := strconv.ParseInt(at, 10, 64)
		if !ok || err != nil {
			return nil, "", badBefore(q.Before)
		}
		args = append(args, s.db.Time(time.UnixMicro(micros).UTC()), id)
		n := len(args)
		where += fmt.Sprintf(" AND (since < $%d OR since = $%d AND id < $%d)", n-1, n-1, n)
	}
	args = append(args, q.Limit+1)
	err = each(ctx, s.db.Read, func(rows *sql.Rows) error {
		c, err := scanCause(rows)
		if err == nil {
			out = append(out, c)
		}
		return err
	}, causeColumns+where+fmt.Sprintf(" ORDER BY since DESC, id DESC LIMIT $%d", len(args)), args...)
	if len(out) > q.Limit {
		out = out[:q.Limit]
		last := out[q.Limit-1]
		next = strconv.FormatInt(last.Since.UnixMicro(), 10) + "." + last.ID
	}
	return out, next, s.wrap("list causes", err)
}

func badBefore(text string) error {
	return strict.Problems{{Path: "before", Message: strict.Quote(text) + ": want the value that the last page returned"}}
}

// Cause returns the cause with an id, or ErrNotFound.
func (s *Store) Cause(ctx context.Context, id string) (c *Cause, err error) {
	err = each(ctx, s.db.Read, func(rows *sql.Rows) (err error) {
		c, err = scanCause(rows)
		return err
	}, causeColumns+"WHERE id = $1", id)
	if err == nil && c == nil {
		err = ErrNotFound
	}
	return c, s.wrap("read a cause", err)
}

// Acknowledge notes that someone takes care of a cause that is not over: it is not told of again. An empty name takes that back.
func (s *Store) Acknowledge(ctx context.Context, id, by, note string) error {
	at, err := s.Time(ctx)
	if err != nil {
		return err
	}
	var p strict.Report
	checkText(&p, "note", note)
	if err := p.Problems.Err(); err != nil {
		return err
	}
	var stamp any
	if by != "" {
		stamp = s.db.Time(at)
	}
	r, err := s.db.Write.ExecContext(ctx, "UPDATE stint_alert_causes SET acked_at = $2, acked_by = $3, ack_note = $4 WHERE id = $1 AND phase <> 'resolved'", id, stamp, by, note)
	return s.wrap("acknowledge", found1(r, err))
}

func found1(r sql.Result, err error) error {
	if err != nil {
		return err
	}
	if n, err := r.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, ErrNotFound)
	}
	return nil
}

// Silences returns the silences that have not ended, the first to end first.
func (s *Store) Silences(ctx context.Context) ([]Silence, error) {
	at, err := s.Time(ctx)
	if err != nil {
		return nil, err
	}
	out, err := s.silences(ctx, s.db.Read, at)
	return out, s.wrap("list silences", err)
}

func (s *Store) silences(ctx context.Context, q querier, now time.Time) (out []Silence, err error) {
	err = each(ctx, q, func(rows *sql.Rows) error {
		var one Silence
		var until, at database.Stamp
		err := rows.Scan(&one.ID, &one.Alert, &one.Subject, &until, &one.Reason, &at, &one.By)
		one.Until, one.At = until.Time, at.Time
		out = append(out, one)
		return err
	}, "SELECT id, alert, subject, until, reason, created_at, created_by FROM stint_alert_silences WHERE until > $1 ORDER BY until, id", s.db.Time(now))
	return out, err
}

// longestSilence is how long a silence may last: one that is forgotten must not hide alerts for good.
const longestSilence = 30 * 24 * time.Hour

// Silence holds back messages until a time.
func (s *Store) Silence(ctx context.Context, one Silence) (Silence, error) {
	now, err := s.Time(ctx)
	if err != nil {
		return one, err
	}
	var p strict.Report
	switch at := one.Until.UTC().Format(time.RFC3339); {
	case one.Until.IsZero():
		p.Add("until", "missing, want when it ends", "")
	case !one.Until.After(now):
		p.Refuse("until", at, "a time after now, which is "+now.Format(time.RFC3339), "")
	case one.Until.Sub(now) > longestSilence:
		p.Refuse("until", at, "a time within 30 days", "")
	}
	checkText(&p, "reason", one.Reason)
	for field, name := range map[string]string{"alert": one.Alert, "subject": one.Subject} {
		checkText(&p, field, name)
	}
	if one.Subject != "" && one.Alert == "" {
		p.Add("alert", "missing, want the alert of the subject", "")
	}
	all, err := s.silences(ctx, s.db.Read, now)
	if err != nil {
		return one, s.wrap("silence", err)
	}
	if len(all) >= MaxSilences {
		p.Add("", fmt.Sprintf("there are %d silences, and may not be more", len(all)), "")
	}
	if err := p.Problems.Err(); err != nil {
		return one, err
	}
	one.ID, one.At, one.Until = rand.Text(), now.Truncate(time.Microsecond), one.Until.UTC().Truncate(time.Microsecond)
	_, err = s.db.Write.ExecContext(ctx, "INSERT INTO stint_alert_silences (id, alert, subject, until, reason, created_at, created_by) VALUES ($1, $2, $3, $4, $5, $6, $7)",
		one.ID, one.Alert, one.Subject, s.db.Time(one.Until), one.Reason, s.db.Time(one.At), one.By)
	return one, s.wrap("silence", err)
}

// Unsilence ends a silence.
func (s *Store) Unsilence(ctx context.Context, id string) error {
	r, err := s.db.Write.ExecContext(ctx, "DELETE FROM stint_alert_silences WHERE id = $1", id)
	return s.wrap("end a silence", found1(r, err))
}

// State is how evaluation goes.
type State struct {
	Node      string    // that has the turn
	Evaluated time.Time // the last time that all could be evaluated; zero: never
	Problem   string    // why some alerts cannot be evaluated
	Now       time.Time // of the same clock
	Firing    int
	Waiting   int // messages
	Dead      int // letters
}

// State returns how evaluation goes.
func (s *Store) State(ctx context.Context) (out State, err error) {
	if out.Now, err = s.Time(ctx); err != nil {
		return out, err
	}
	var evaluated database.Stamp
	err = s.db.Read.QueryRowContext(ctx, `SELECT node, evaluated_at, problem, (SELECT count(*) FROM stint_alert_causes WHERE phase = 'firing'),
		(SELECT count(*) FROM stint_deliveries WHERE state = 'waiting'), (SELECT count(*) FROM stint_deliveries WHERE state = 'dead') FROM stint_alert_turn`).
		Scan(&out.Node, &evaluated, &out.Problem, &out.Firing, &out.Waiting, &out.Dead)
	out.Evaluated = evaluated.Time
	return out, s.wrap("read the state", err)
}

// turnTime is how long a node that does not renew its turn keeps it.
const turnTime = 15 * time.Second

// take begins a transaction of the node that has the turn, or takes the turn when it is free. The row stays locked, so that no
// other node can take it meanwhile. A nil transaction means that another node has it.
func (s *Store) take(ctx context.Context, node string) (*sql.Tx, time.Time, error) {
	tx, err := s.db.Write.BeginTx(ctx, nil)
	if err != nil {
		return nil, time.Time{}, err
	}
	var now database.Stamp
	err = tx.QueryRowContext(ctx, "UPDATE stint_alert_turn SET node = $1, until = "+s.db.Ago(-turnTime)+" WHERE node = $1 OR until < "+s.db.Now()+" RETURNING "+s.db.Now(), node).Scan(&now)
	if err != nil {
		_ = tx.Rollback()
		if errors.Is(err, sql.ErrNoRows) {
			return nil, time.Time{}, nil
		}
		return nil, time.Time{}, err
	}
	if s.now != nil {
		now.Time = s.now().UTC()
	}
	return tx, now.Time, nil
}

// leave gives the turn back, so that another node need not wait.
func (s *Store) leave(ctx context.Context, node string) error {
	_, err := s.db.Write.ExecContext(ctx, "UPDATE stint_alert_turn SET until = "+s.db.Ago(0)+" WHERE node = $1", node)
	return err
}

// load returns the causes that matter to Step, by alert: of each subject the latest.
func (s *Store) load(ctx context.Context, tx *sql.Tx, now time.Time) (map[string][]*Cause, error) {
	latest := map[string]*Cause{}
	var order []string
	err := each(ctx, tx, func(rows *sql.Rows) error {
		c, err := scanCause(rows)
		if err != nil {
			return err
		}
		switch before := latest[c.Key()]; {
		case before == nil:
			order = append(order, c.Key())
		case before.Phase != Resolved: // nothing comes after it yet
			return nil
		}
		latest[c.Key()] = c
		return nil
	}, causeColumns+"WHERE phase <> 'resolved' OR told = 'firing' OR last_at > $1 ORDER BY since, id", s.db.Time(now.Add(-2*between)))
	out := map[string][]*Cause{}
	for _, key := range order {
		c := latest[key]
		out[c.Alert] = append(out[c.Alert], c)
	}
	return out, err
}

// save writes the causes that have changed. One that ended before it fired is forgotten.
func (s *Store) save(ctx context.Context, tx *sql.Tx, causes []*Cause) error {
	for _, c := range causes {
		if !c.changed {
			continue
		}
		if c.Phase == Resolved && c.Fired.IsZero() {
			if _, err := tx.ExecContext(ctx, "DELETE FROM stint_alert_causes WHERE id = $1", c.ID); err != nil {
				return err
			}
			continue
		}
		body, err := json.Marshal(c)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO stint_alert_causes (id, phase, told, last_at, since, fired_at, body) VALUES ($1, $2, $3, $4, $5, $6, $7)
			ON CONFLICT (id) DO UPDATE SET phase = excluded.phase, told = excluded.told, last_at = excluded.last_at, fired_at = excluded.fired_at, body = excluded.body`,
			c.ID, c.Phase, c.Told, s.db.Time(c.LastAt), s.db.Time(c.Since), s.db.Time(c.Fired), string(body))
		if err != nil {
			return err
		}
	}
	return nil
}

// clean deletes what is old, or too much.
func (s *Store) clean(ctx context.Context, tx *sql.Tx, now time.Time, webhooks []string) error {
	old := s.db.Time(now.Add(-keptFor))
	for _, one := range []struct {
		query string
		args  []any
	}{
		{"DELETE FROM stint_rule_minutes WHERE start < $1", []any{s.db.Time(now.Add(-2 * time.Hour))}},
		{"DELETE FROM stint_alert_silences WHERE until < $1", []any{s.db.Time(now)}},
		{"DELETE FROM stint_alert_causes WHERE phase = 'resolved' AND told <> 'firing' AND since < $1", []any{old}},
		{"DELETE FROM stint_alert_causes WHERE phase = 'resolved' AND told <> 'firing' AND id NOT IN (SELECT id FROM stint_alert_causes WHERE phase = 'resolved' ORDER BY since DESC LIMIT $1)", []any{MaxKept}},
		{"DELETE FROM stint_deliveries WHERE state <> 'waiting' AND done_at < $1", []any{old}},
	} {
		if _, err := tx.ExecContext(ctx, one.query, one.args...); err != nil {
			return err
		}
	}
	for _, webhook := range webhooks {
		for _, state := range []string{Delivered, Dead} {
			_, err := tx.ExecContext(ctx, `DELETE FROM stint_deliveries WHERE state = $1 AND webhook = $2 AND number <
				(SELECT number FROM stint_deliveries WHERE state = $1 AND webhook = $2 ORDER BY number DESC LIMIT 1 OFFSET $3)`, state, webhook, MaxKept-1)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// names returns the names of webhooks, sorted.
func names(webhooks []Webhook) []string {
	out := make([]string, len(webhooks))
	for i := range webhooks {
		out[i] = webhooks[i].Name
	}
	slices.Sort(out)
	return out
}
