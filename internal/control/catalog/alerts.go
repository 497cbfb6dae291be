package catalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/stintdev/stint/internal/control/alert"
	"github.com/stintdev/stint/internal/kit/strict"
)

// The secret of a webhook is in stint_secrets, and in no body of a record: so it is in no answer, export or change.

func secretName(webhook string) string { return "webhook/" + webhook }

// putSecret stores the secret of a webhook, if it is given and another than the one that is stored, and notes in the value when
// it was set.
func (t *tx) putSecret(ctx context.Context, w *Webhook, path string) error {
	var stored []byte
	var at stamp
	err := t.QueryRowContext(ctx, "SELECT value, created_at FROM stint_secrets WHERE name = $1", secretName(w.Name)).Scan(&stored, &at)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	given := w.Secret
	w.Secret, w.SecretSet = "", at.Time
	if given == "" || given == string(stored) {
		if stored == nil && t.restoring == nil && given == "" && w.NeedsSecret() {
			t.problems = append(t.problems, strict.Problem{Path: strict.Member(path, "secret"), Message: "missing, and url has {secret}"})
		}
		return nil
	}
	w.SecretSet = t.now
	_, err = t.ExecContext(ctx, `INSERT INTO stint_secrets (name, value, created_at) VALUES ($1, $2, $3)
		ON CONFLICT (name) DO UPDATE SET value = excluded.value, created_at = excluded.created_at`, secretName(w.Name), []byte(given), t.c.dialect.Time(t.now))
	return err
}

// removeSecret deletes the secret of a webhook.
func (t *tx) removeSecret(ctx context.Context, webhook string) error {
	_, err := t.ExecContext(ctx, "DELETE FROM stint_secrets WHERE name = $1", secretName(webhook))
	return err
}

// checkUntold returns a problem if an alert tells a webhook.
func (t *tx) checkUntold(ctx context.Context, webhook string) error {
	alerts, err := t.c.Alerts.query(ctx, t, "ORDER BY id")
	if err != nil {
		return err
	}
	for i := range alerts {
		if slices.Contains(alerts[i].Value.Webhooks, webhook) {
			return strict.Problems{{Message: fmt.Sprintf("the webhook %s cannot be deleted: the alert %s tells it", strict.Quote(webhook), strict.Quote(alerts[i].Value.Name))}}
		}
	}
	return nil
}

// knownTo returns what an alert may refer to. A rule that it has referred to already may have been deleted since.
func (t *tx) knownTo(ctx context.Context, a *Alert, found *row) (known alert.Known, err error) {
	known.Webhooks, err = ids(ctx, t, t.c.Webhooks.table)
	if err != nil || a.Rule == "" {
		return known, err
	}
	if found != nil || t.restoring != nil {
		var before Alert
		text := string(t.restoring)
		if text == "" {
			text = found.body
		}
		if t.c.Alerts.decode(text, false, &before) == nil && before.Rule == a.Rule {
			return known, nil
		}
	}
	known.Rules, err = ids(ctx, t, t.c.Rules.table)
	return known, err
}

// ids returns the ids of a table with few records.
func ids(ctx context.Context, q querier, table string) ([]string, error) {
	rows, err := q.QueryContext(ctx, "SELECT id FROM "+table+" ORDER BY id")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []string{}
	for rows.Next() {
		out = append(out, "")
		if err := rows.Scan(&out[len(out)-1]); err != nil {
			return nil, err
		}
	}
	return out, rows.Err()
}

// Definitions returns all alerts and webhooks, with their secrets.
func (c *Catalog) Definitions(ctx context.Context) (out alert.Definitions, err error) {
	defer func() { err = withCause(ctx, err) }()
	tx, err := c.reading.BeginTx(ctx, c.dialect.ReadOnly())
	if err != nil {
		return out, c.wrap(err)
	}
	defer tx.Rollback() //nolint:errcheck // it was only read
	alerts, err := c.Alerts.query(ctx, tx, "ORDER BY id")
	if err != nil {
		return out, err
	}
	for i := range alerts {
		out.Alerts = append(out.Alerts, alerts[i].Value)
	}
	webhooks, err := c.Webhooks.query(ctx, tx, "ORDER BY id")
	if err != nil || len(webhooks) == 0 {
		return out, err
	}
	secrets := map[string]string{}
	rows, err := tx.QueryContext(ctx, "SELECT name, value FROM stint_secrets WHERE name LIKE 'webhook/%'")
	if err != nil {
		return out, c.wrap(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var value []byte
		if err := rows.Scan(&name, &value); err != nil {
			return out, c.wrap(err)
		}
		secrets[name] = string(value)
	}
	for i := range webhooks {
		w := webhooks[i].Value
		w.Secret = secrets[secretName(w.Name)]
		out.Webhooks = append(out.Webhooks, w)
	}
	return out, c.wrap(rows.Err())
}
