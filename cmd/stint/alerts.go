package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stintdev/stint/internal/control/admin"
	"github.com/stintdev/stint/internal/control/alert"
)

func newAlerts(t *terminal) *cobra.Command {
	k := kind[alert.Alert]{
		path: "alerts", one: "alert", key: "name", example: "denials", unused: "search-denies", fields: "percent=20 for=5m", firstFields: "kind=rule rule=search percent=20 for=5m",
		flags: []fieldFlag{
			textFlag("kind", "kind", "the `kind`: rule, client, health or rollout"),
			textFlag("rule", "rule", "the `rule` that it is about"),
			{"webhook", "a `webhook` that is told; can be repeated", func(into tree, value string) error {
				list, _ := into["webhooks"].([]any)
				into["webhooks"] = append(list, value)
				return nil
			}},
		},
		head: []string{"NAME", "KIND", "FIRES IF", "SEVERITY", "WEBHOOKS"},
		cells: func(r *stored[alert.Alert]) []any {
			v := &r.Value
			text := v.Condition()
			if !v.On() {
				text += " (disabled)"
			}
			return []any{r.ID, v.Kind, text, v.Level(), v.Webhooks}
		},
	}
	return family("alerts", "Manage alerts: what fires, acknowledgements, silences, definitions",
		append([]*cobra.Command{
			newCauses(t, "firing", "List what fires", "List what alerts have found: what fires, and what is pending because it has not lasted long enough.", ""),
			newCauses(t, "history", "List what fired before", "List what fired and is resolved, the latest first. It is kept for 30 days.", alert.Resolved),
			newAck(t), newUnack(t), newSilences(t), newSilence(t), newUnsilence(t),
		}, k.commands(t)...)...)
}

func newCauses(t *terminal, verb, short, long, phase string) *cobra.Command {
	var limit int
	c := queryCommand(t, &cobra.Command{
		Use: verb, Short: short, Long: long, Example: "  stint alerts " + verb + "\n  stint alerts " + verb + " -o json",
	}, func(c *cobra.Command, a *client, _ []string) error {
		all, err := gather[admin.Cause](c.Context(), t, a, "/causes", "before", parameters("phase", phase), limit)
		if err != nil {
			return err
		}
		head := []string{"ID", "ALERT", "PHASE", "SINCE", "WHAT", "NOTE"}
		if phase != "" {
			head[2], head[3] = "FIRED", "RESOLVED"
		}
		return printList(t, all, "nothing "+map[string]string{"": "fires", alert.Resolved: "has fired"}[phase], head, func(v *admin.Cause) []any {
			note := ""
			switch {
			case !v.Acked.IsZero():
				note = strings.TrimSuffix("acknowledged by "+v.AckedBy+": "+v.AckNote, ": ")
			case v.Silenced:
				note = "silenced"
			}
			if phase != "" {
				return []any{v.ID, v.Alert, v.Fired, v.Resolved, v.Text, note}
			}
			return []any{v.ID, v.Alert, v.Phase, v.Since, v.Text, note}
		})
	})
	addLimit(c, &limit, 100)
	return c
}

func newAck(t *terminal) *cobra.Command {
	var note string
	c := queryCommand(t, &cobra.Command{
		Use: "ack ID", Short: "Acknowledge what fires",
		Long: `Say that you take care of something that fires: messages do not repeat it until it is resolved.
Others see who, and the note.`,
		Example: "  stint alerts firing\n  stint alerts ack 4MQYX7BN2KCD6WVR3TQZ5HJA8E --note 'the importer runs'",
		Args:    wants(1, 1, "the ID of what fires"), ValidArgsFunction: completeIDs(t, "causes"),
	}, func(c *cobra.Command, a *client, args []string) error {
		return putCause(c.Context(), t, a, http.MethodPost, args[0], admin.Acknowledgement{Note: note}, "acknowledged")
	})
	c.Flags().StringVar(&note, "note", "", "for others, a `text`")
	return c
}

func newUnack(t *terminal) *cobra.Command {
	return queryCommand(t, &cobra.Command{
		Use: "unack ID", Short: "Take back an acknowledgement", Long: "Take back an acknowledgement: messages repeat what fires again.",
		Example: "  stint alerts unack 4MQYX7BN2KCD6WVR3TQZ5HJA8E",
		Args:    wants(1, 1, "the ID of what fires"), ValidArgsFunction: completeIDs(t, "causes"),
	}, func(c *cobra.Command, a *client, args []string) error {
		return putCause(c.Context(), t, a, http.MethodDelete, args[0], nil, "no longer acknowledged")
	})
}

func putCause(ctx context.Context, t *terminal, a *client, method, id string, body any, done string) error {
	var v admin.Cause
	if err := a.do(ctx, call{method: method, path: "/causes/" + url.PathEscape(id) + "/acknowledge", body: body, into: &v}); err != nil {
		if hasStatus(err, http.StatusNotFound) {
			return advice{err, "stint alerts firing"}
		}
		return err
	}
	return t.print(v, nil, func() error {
		_, err := fmt.Fprintf(t.out, "%s: %s is %s\n", printable(v.Alert), printable(v.Subject), done)
		return err
	})
}

func newSilences(t *terminal) *cobra.Command {
	return queryCommand(t, &cobra.Command{
		Use: "silences", Short: "List silences", Long: "List the silences that have not ended.", Example: "  stint alerts silences\n  stint alerts silences -o csv",
	}, func(c *cobra.Command, a *client, _ []string) error {
		all, err := items[admin.Silence](c.Context(), a, "/silences", nil)
		if err != nil {
			return err
		}
		return printList(t, all, "nothing is silenced", []string{"ID", "ALERT", "SUBJECT", "UNTIL", "REASON", "BY"}, func(s *admin.Silence) []any {
			return []any{s.ID, cmp.Or(s.Alert, "(all)"), s.Subject, s.Until.Time, s.Reason, s.By}
		})
	})
}

func newSilence(t *terminal) *cobra.Command {
	var reason string
	var f expiryFlags
	c := queryCommand(t, &cobra.Command{
		Use: "silence [ALERT [SUBJECT]]", Short: "Silence alerts for a time",
		Long: `Hold back messages for a time, of at most 30 days: those of all alerts, of one, or of one of its
subjects. Alerts still fire and are shown. What still fires when the silence ends is told then.`,
		Example: "  stint alerts silence denials --for 1h --reason 'a load test'\n  stint alerts silence --for 10m",
		Args:    wants(0, 2, "at most an ALERT and a SUBJECT"), ValidArgsFunction: completeIDs(t, "alerts"),
	}, func(c *cobra.Command, a *client, args []string) error {
		until, err := f.parse()
		if err != nil {
			return err
		}
		if until.IsZero() {
			return usageError(c, "%s needs --for or --until", c.CommandPath())
		}
		body := admin.NewSilence{Until: until, Reason: reason}
		for i, into := range []*string{&body.Alert, &body.Subject} {
			if i < len(args) {
				*into = args[i]
			}
		}
		var made admin.Silence
		if err := a.do(c.Context(), call{method: http.MethodPost, path: "/silences", body: body, into: &made}); err != nil {
			return err
		}
		return t.print(made, nil, func() error {
			_, err := fmt.Fprintf(t.out, "+ silence %s of %s until %s\n", made.ID, printable(strings.TrimSpace(cmp.Or(made.Alert, "all alerts")+" "+made.Subject)), cell(made.Until.Time))
			return err
		})
	})
	c.Flags().StringVar(&reason, "reason", "", "the reason, as a `text`")
	f.add(c)
	return c
}

func newUnsilence(t *terminal) *cobra.Command {
	return serverCommand(t, &cobra.Command{
		Use: "unsilence ID", Short: "End a silence", Long: "End a silence: what still fires is told.",
		Example: "  stint alerts silences\n  stint alerts unsilence 4MQYX7BN2KCD6WVR3TQZ5HJA8E",
		Args:    wants(1, 1, "the ID of a silence"), ValidArgsFunction: completeIDs(t, "silences"),
	}, func(c *cobra.Command, a *client, args []string) error {
		if err := a.do(c.Context(), call{method: http.MethodDelete, path: "/silences/" + url.PathEscape(args[0])}); err != nil {
			return err
		}
		_, err := fmt.Fprintf(t.out, "- silence %s\n", printable(args[0]))
		return err
	})
}

func newWebhooks(t *terminal) *cobra.Command {
	k := kind[alert.Webhook]{
		path: "webhooks", one: "webhook", key: "name", example: "oncall", unused: "chat", fields: "retry_for=2h", firstFields: "url=https://hooks.example.com/stint",
		flags: []fieldFlag{
			textFlag("url", "url", "the `URL` that messages are posted to; {secret} in it stands for the secret"),
			textFlag("format", "format", "the `format`: json, slack or alertmanager"),
		},
		head: []string{"NAME", "FORMAT", "URL", "SECRET SET"},
		cells: func(r *stored[alert.Webhook]) []any {
			return []any{r.ID, r.Value.Style(), r.Value.URL, r.Value.SecretSet}
		},
	}
	return family("webhooks", "Manage webhooks: where alerts are told", append(k.commands(t), newSecret(t), newTest(t), newDeliveries(t), newRetry(t))...)
}

func newSecret(t *terminal) *cobra.Command {
	var file string
	c := queryCommand(t, &cobra.Command{
		Use: "secret NAME", Short: "Set the secret of a webhook",
		Long: `Replace the secret of a webhook, which signs its messages and which {secret} in its URL stands
for, by the first line of a file or, without one, by a random one, which is shown once.`,
		Example: "  stint webhooks secret oncall > secret.txt\n  stint webhooks secret oncall -f secret.txt",
		Args:    wants(1, 1, "the NAME of a webhook"), ValidArgsFunction: completeIDs(t, "webhooks"),
	}, func(c *cobra.Command, a *client, args []string) error {
		var body admin.NewSecret
		if file != "" {
			const maxSize = 4096
			_, data, err := readFile(c, file, maxSize, "a file with the secret in its first line")
			if err != nil {
				return err
			}
			body.Secret, _, _ = strings.Cut(strings.TrimSpace(string(data)), "\n")
		}
		var made admin.CreatedWebhook
		if err := a.do(c.Context(), call{method: http.MethodPost, path: "/webhooks/" + url.PathEscape(args[0]) + "/secret", body: body, into: &made}); err != nil {
			return err
		}
		return t.print(made, nil, func() error { return t.printSecret(made.ID, made.Secret) })
	})
	addFile(c, &file, "a `FILE` with the secret; - is the standard input")
	return c
}

// printSecret prints only the secret to the standard output, so that it can go to a file.
func (t *terminal) printSecret(webhook, secret string) error {
	if secret == "" {
		t.notes("the secret of the webhook " + printable(webhook) + " was set")
		return nil
	}
	t.notes("this is the secret of the webhook " + printable(webhook) + "; it cannot be shown again")
	_, err := fmt.Fprintln(t.out, printable(secret))
	return err
}

func newTest(t *terminal) *cobra.Command {
	var wait time.Duration
	c := queryCommand(t, &cobra.Command{
		Use: "test NAME", Short: "Send a test message",
		Long: `Send a message that says that it is a test, and wait for its first attempt. The exit code is 1 if
it was not delivered.`,
		Example: "  stint webhooks test oncall",
		Args:    wants(1, 1, "the NAME of a webhook"), ValidArgsFunction: completeIDs(t, "webhooks"),
	}, func(c *cobra.Command, a *client, args []string) error {
		var d admin.Delivery
		if err := a.do(c.Context(), call{method: http.MethodPost, path: "/webhooks/" + url.PathEscape(args[0]) + "/test", into: &d}); err != nil {
			if hasStatus(err, http.StatusNotFound) {
				return advice{err, "stint webhooks list"}
			}
			return err
		}
		for end := now().Add(wait); d.State == alert.Waiting && d.Problem == "" && now().Before(end); {
			select {
			case <-c.Context().Done():
				return c.Context().Err()
			case <-time.After(200 * time.Millisecond):
			}
			if err := a.do(c.Context(), call{path: "/deliveries/" + url.PathEscape(d.ID), into: &d}); err != nil {
				return err
			}
		}
		return answer(t.print(d, nil, func() error {
			text := "delivered to " + printable(d.Webhook)
			switch {
			case d.Problem != "":
				text = fmt.Sprintf("not delivered to %s: %s", printable(d.Webhook), d.Problem)
			case d.State == alert.Waiting:
				text = "not delivered yet: stint webhooks deliveries shows how it goes"
			}
			_, err := fmt.Fprintln(t.out, text)
			return err
		}), d.State == alert.Delivered)
	})
	c.Flags().DurationVar(&wait, "wait", 20*time.Second, "how `long` to wait")
	return c
}

func newDeliveries(t *terminal) *cobra.Command {
	var webhook, state string
	var limit int
	c := queryCommand(t, &cobra.Command{
		Use: "deliveries", Short: "List messages to webhooks",
		Long:    "List messages to webhooks, the latest first: those that wait for an attempt, those that were delivered, and dead letters, which were given up.",
		Example: "  stint webhooks deliveries\n  stint webhooks deliveries --state dead -o json",
	}, func(c *cobra.Command, a *client, _ []string) error {
		all, err := gather[admin.Delivery](c.Context(), t, a, "/deliveries", "before", parameters("webhook", webhook, "state", state), limit)
		if err != nil {
			return err
		}
		return printList(t, all, "there are none", []string{"ID", "WEBHOOK", "STATE", "TYPE", "ALERT", "CREATED", "ATTEMPTS", "PROBLEM"}, func(d *admin.Delivery) []any {
			return []any{d.ID, d.Webhook, d.State, d.Type, d.Alert, d.Created, d.Attempts, d.Problem}
		})
	})
	addFilters(c, filter{&webhook, "webhook", "only those to this `webhook`"})
	addChoice(c, &state, "state", "", "only those in this `state`: waiting, delivered or dead", alert.Waiting, alert.Delivered, alert.Dead)
	addLimit(c, &limit, 100)
	return c
}

func newRetry(t *terminal) *cobra.Command {
	var all bool
	c := serverCommand(t, &cobra.Command{
		Use: "retry [ID...]", Short: "Try dead letters again",
		Long: `Try messages that were given up again, for as long as new ones. One is not tried again if a newer
message about the same cause was delivered: receivers would take the old one for how it is.
With --all, those are listed and stay dead letters.`,
		Example: "  stint webhooks deliveries --state dead\n  stint webhooks retry 4MQYX7BN2KCD6WVR3TQZ5HJA8E\n  stint webhooks retry --all",
		Args:    cobra.ArbitraryArgs, ValidArgsFunction: completeIDs(t, "deliveries"),
	}, func(c *cobra.Command, a *client, ids []string) error {
		if all == (len(ids) > 0) {
			return usageError(c, "%s needs one ID or more, or --all", c.CommandPath())
		}
		if all {
			dead, err := gather[admin.Delivery](c.Context(), t, a, "/deliveries", "before", parameters("state", alert.Dead), 0)
			if err != nil {
				return err
			}
			for _, d := range slices.Backward(dead) { // the oldest first
				ids = append(ids, d.ID)
			}
		}
		for _, id := range ids {
			var d admin.Delivery
			err := a.do(c.Context(), call{method: http.MethodPost, path: "/deliveries/" + url.PathEscape(id) + "/retry", into: &d})
			switch {
			case all && hasStatus(err, http.StatusConflict):
				t.notes(printable(id) + " stays: a newer message about the same cause was delivered")
				continue
			case hasStatus(err, http.StatusConflict):
				return advice{err, "stint alerts firing; stint webhooks test tests the webhook"}
			case hasStatus(err, http.StatusNotFound):
				return advice{err, "stint webhooks deliveries --state dead"}
			case err != nil:
				return err
			}
			fmt.Fprintf(t.out, "%s to %s is tried again\n", printable(d.ID), printable(d.Webhook))
		}
		if len(ids) == 0 {
			t.notes("there are no dead letters")
		}
		return nil
	})
	c.Flags().BoolVar(&all, "all", false, "all dead letters")
	return c
}
