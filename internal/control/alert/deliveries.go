package alert

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/stintdev/stint/internal/kit/database"
)

// The states of deliveries.
const (
	Waiting   = "waiting"
	Delivered = "delivered"
	Dead      = "dead"
)

// Delivery is a message to one webhook.
type Delivery struct {
	ID       string
	Number   int64
	Webhook  string
	State    string
	Attempts int
	Created  time.Time
	First    time.Time // of the first attempt
	Next     time.Time // of the next attempt, while it waits
	Done     time.Time
	Status   int    // of the last answer; 0: there was none
	Problem  string // of the last attempt
	Message  Message

	key string
}

// enqueue writes messages for their webhooks, of which only those that exist get one. Beyond [MaxWaiting], the oldest
// messages of a webhook are dead letters.
func (s *Store) enqueue(ctx context.Context, tx *sql.Tx, now time.Time, messages []Message, exists map[string]bool) error {
	told := map[string]bool{}
	for i := range messages {
		m := &messages[i]
		body, err := json.Marshal(m)
		if err != nil {
			return err
		}
		for _, webhook := range m.webhooks {
			if !exists[webhook] {
				continue
			}
			told[webhook] = true
			if _, err := s.insert(ctx, tx, now, webhook, m.key, body); err != nil {
				return err
			}
		}
	}
	for webhook := range told {
		_, err := tx.ExecContext(ctx, `UPDATE stint_deliveries SET state = 'dead', done_at = $1, problem = $2 WHERE state = 'waiting' AND webhook = $3 AND number <=
			(SELECT number FROM stint_deliveries WHERE state = 'waiting' AND webhook = $3 ORDER BY number DESC LIMIT 1 OFFSET $4)`,
			s.db.Time(now), fmt.Sprintf("more than %d messages waited for the webhook", MaxWaiting), webhook, MaxWaiting)
		if err != nil {
			return err
		}
	}
	return nil
}

// execer is a database or a transaction.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// insert writes a message for a webhook. Numbers are in the order of the transactions that take them.
func (s *Store) insert(ctx context.Context, e execer, now time.Time, webhook, key string, body []byte) (id string, err error) {
	var number int64
	if err := e.QueryRowContext(ctx, "UPDATE stint_alert_turn SET number = number + 1 RETURNING number").Scan(&number); err != nil {
		return "", err
	}
	id = rand.Text()
	_, err = e.ExecContext(ctx, `INSERT INTO stint_deliveries (id, number, webhook, cause, state, attempts, created_at, next_at, status, problem, body)
		VALUES ($1, $2, $3, $4, 'waiting', 0, $5, $5, 0, '', $6)`, id, number, webhook, key, s.db.Time(now), string(body))
	return id, err
}

// Test queues a message that only says that it is a test, and returns the id of its delivery.
func (s *Store) Test(ctx context.Context, webhook, by string) (string, error) {
	now, err := s.Time(ctx)
	if err != nil {
		return "", err
	}
	m := Message{ID: rand.Text(), Type: TypeTest, At: now, Alert: "test", Severity: "info", Text: "this is a test of the webhook " + webhook + ", sent by " + by}
	body, err := json.Marshal(&m)
	if err != nil {
		return "", err
	}
	tx, err := s.db.Write.BeginTx(ctx, nil)
	if err != nil {
		return "", s.wrap("send a test", err)
	}
	defer tx.Rollback() //nolint:errcheck // after a commit there is nothing to undo
	id, err := s.insert(ctx, tx, now, webhook, "test\x1f"+m.ID, body)
	if err == nil {
		err = tx.Commit()
	}
	return id, s.wrap("send a test", err)
}

const deliveryColumns = "SELECT id, number, webhook, cause, state, attempts, created_at, first_at, next_at, done_at, status, problem, body FROM stint_deliveries "

func (s *Store) deliveries(ctx context.Context, q querier, query string, args ...any) (out []Delivery, err error) {
	err = each(ctx, q, func(rows *sql.Rows) error {
		var d Delivery
		var created, first, next, done database.Stamp
		var body string
		if err := rows.Scan(&d.ID, &d.Number, &d.Webhook, &d.key, &d.State, &d.Attempts, &created, &first, &next, &done, &d.Status, &d.Problem, &body); err != nil {
			return err
		}
		d.Created, d.First, d.Next, d.Done = created.Time, first.Time, next.Time, done.Time
		if err := json.Unmarshal([]byte(body), &d.Message); err != nil {
			return fmt.Errorf("a message cannot be read: a newer version has written it: %w", err)
		}
		out = append(out, d)
		return nil
	}, deliveryColumns+query, args...)
	return out, err
}

// Deliveries returns deliveries, the latest first, and the Before of the next page.
func (s *Store) Deliveries(ctx context.Context, q Query) (out []Delivery, next string, err error) {
	where, args := "WHERE 1 = 1", []any{}
	add := func(condition string, arg any) {
		args = append(args, arg)
		where += " AND " + condition + " $" + strconv.Itoa(len(args))
	}
	if q.Webhook != "" {
		add("webhook =", q.Webhook)
	}
	if q.State != "" {
		add("state =", q.State)
	}
	if q.Before != "" {
		number, err := strconv.ParseInt(q.Before, 10, 64)
		if err != nil {
			return nil, "", badBefore(q.Before)
		}
		add("number <", number)
	}
	args = append(args, q.Limit+1)
	out, err = s.deliveries(ctx, s.db.Read, where+" ORDER BY number DESC LIMIT $"+strconv.Itoa(len(args)), args...)
	if len(out) > q.Limit {
		out = out[:q.Limit]
		next = strconv.FormatInt(out[q.Limit-1].Number, 10)
	}
	return out, next, s.wrap("list deliveries", err)
}

// Delivery returns one delivery, or ErrNotFound.
func (s *Store) Delivery(ctx context.Context, id string) (Delivery, error) {
	all, err := s.deliveries(ctx, s.db.Read, "WHERE id = $1", id)
	if err == nil && len(all) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return Delivery{}, s.wrap("read a delivery", err)
	}
	return all[0], nil
}

// Retry tries a dead letter again, from now on for as long as a new message. It fails with ErrOvertaken if a newer message about the same
// cause was delivered: after that one, receivers would take the old one for how it is.
func (s *Store) Retry(ctx context.Context, id string) error {
	now, err := s.Time(ctx)
	if err != nil {
		return err
	}
	r, err := s.db.Write.ExecContext(ctx, `UPDATE stint_deliveries AS d SET state = 'waiting', first_at = NULL, done_at = NULL, attempts = 0, next_at = $2 WHERE id = $1 AND state = 'dead' AND NOT EXISTS
		(SELECT 1 FROM stint_deliveries AS e WHERE e.state = 'delivered' AND e.webhook = d.webhook AND e.cause = d.cause AND e.number > d.number)`, id, s.db.Time(now))
	err = found1(r, err)
	if errors.Is(err, ErrNotFound) {
		if d, readErr := s.Delivery(ctx, id); readErr == nil && d.State == Dead {
			return ErrOvertaken
		}
	}
	return s.wrap("try a message again", err)
}

// headsAtOnce is how many deliveries to one webhook are read at once.
const headsAtOnce = 50

// heads returns the deliveries that are due, by webhook: of those about the same cause only the first that waits, and none within a
// minute after one was delivered. After an outage of the receiver many may wait that were made a minute apart. Each test is a cause of its own.
func (s *Store) heads(ctx context.Context, now time.Time) (map[string][]Delivery, error) {
	var webhooks []string
	err := each(ctx, s.db.Read, func(rows *sql.Rows) error {
		webhooks = append(webhooks, "")
		return rows.Scan(&webhooks[len(webhooks)-1])
	}, "SELECT DISTINCT webhook FROM stint_deliveries WHERE state = 'waiting' AND next_at <= $1", s.db.Time(now))
	out := map[string][]Delivery{}
	for _, webhook := range webhooks {
		if err != nil {
			break
		}
		out[webhook], err = s.deliveries(ctx, s.db.Read, `AS d WHERE state = 'waiting' AND webhook = $1 AND next_at <= $2 AND NOT EXISTS (SELECT 1 FROM stint_deliveries AS e
			WHERE e.state = 'waiting' AND e.webhook = d.webhook AND e.cause = d.cause AND e.number < d.number)
			AND NOT EXISTS (SELECT 1 FROM stint_deliveries AS e WHERE e.state = 'delivered' AND e.webhook = d.webhook AND e.cause = d.cause AND e.done_at > $3)
			ORDER BY number LIMIT $4`, webhook, s.db.Time(now), s.db.Time(now.Add(-between)), headsAtOnce)
	}
	return out, s.wrap("read what is to be delivered", err)
}

// claimFor is how long no other node tries a delivery that was claimed.
const claimFor = 2 * attemptTime

// claim counts an attempt before it is made, if this node has the turn and no one else has claimed it.
func (s *Store) claim(ctx context.Context, node string, d *Delivery) (ok bool, err error) {
	tx, now, err := s.take(ctx, node)
	if err != nil || tx == nil {
		return false, s.wrap("claim a delivery", err)
	}
	defer tx.Rollback() //nolint:errcheck // after a commit there is nothing to undo
	r, err := tx.ExecContext(ctx, "UPDATE stint_deliveries SET attempts = attempts + 1, first_at = COALESCE(first_at, $3), next_at = $4 WHERE id = $1 AND state = 'waiting' AND attempts = $2",
		d.ID, d.Attempts, s.db.Time(now), s.db.Time(now.Add(claimFor)))
	if err != nil {
		return false, s.wrap("claim a delivery", err)
	}
	if n, err := r.RowsAffected(); err != nil || n == 0 {
		return false, s.wrap("claim a delivery", err)
	}
	if err := tx.Commit(); err != nil {
		return false, s.wrap("claim a delivery", err)
	}
	d.Attempts++
	if d.First.IsZero() {
		d.First = now
	}
	return true, nil
}

// settle writes how an attempt ended, and returns the state.
func (s *Store) settle(ctx context.Context, d *Delivery, now time.Time, patience time.Duration, status int, failed error) (state string, err error) {
	done, next := s.db.Time(now), s.db.Time(now)
	state = Delivered
	problem := ""
	if failed != nil {
		problem, state = failed.Error(), Dead
		if again := now.Add(wait(d.Attempts)); again.Sub(d.First) < patience {
			state, done, next = Waiting, nil, s.db.Time(again)
		}
	}
	_, err = s.db.Write.ExecContext(ctx, "UPDATE stint_deliveries SET state = $3, next_at = $4, done_at = $5, status = $6, problem = $7 WHERE id = $1 AND attempts = $2 AND state = 'waiting'",
		d.ID, d.Attempts, state, next, done, status, problem)
	return state, s.wrap("note a delivery", err)
}

// drop makes the deliveries to a webhook that does not exist dead letters.
func (s *Store) drop(ctx context.Context, webhook string, now time.Time) error {
	_, err := s.db.Write.ExecContext(ctx, "UPDATE stint_deliveries SET state = 'dead', done_at = $2, problem = $3 WHERE webhook = $1 AND state = 'waiting'",
		webhook, s.db.Time(now), "there is no webhook of this name any more")
	return s.wrap("drop deliveries", err)
}
