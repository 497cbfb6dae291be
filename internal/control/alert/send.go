package alert

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	// attemptTime is how long an attempt may take, and maxAnswer how much of an answer is read, so that the connection
	// can be used again.
	attemptTime = 10 * time.Second
	maxAnswer   = 64 << 10
	// firstWait and longestWait are the waits before the second attempt, and before the last ones.
	firstWait, longestWait = time.Second, 5 * time.Minute
)

// wait returns how long to wait after so many attempts: twice as long each time, and somewhat more or less, so that many
// messages do not come back at once.
func wait(attempts int) time.Duration {
	d := longestWait
	if attempts < 10 {
		d = min(firstWait<<max(0, attempts-1), longestWait)
	}
	return d/2 + rand.N(d) //nolint:gosec // it need not be secret
}

// newClient returns a client that follows no redirects: the receiver that was configured has to take the message itself.
func newClient(transport http.RoundTripper) *http.Client {
	if transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // it is one
		t.MaxIdleConnsPerHost, t.MaxResponseHeaderBytes, t.IdleConnTimeout = 1, maxAnswer, time.Minute
		transport = t
	}
	return &http.Client{
		Transport: transport, Timeout: attemptTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// post delivers a message, and returns the status of the answer, or why there was none. Errors have no URL.
func post(ctx context.Context, client *http.Client, w *Webhook, d *Delivery, now time.Time, version string) (status int, err error) {
	body, err := d.Message.body(w.Style())
	if err != nil {
		return 0, err
	}
	to, err := w.target()
	if err != nil {
		return 0, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return 0, errors.New("the url is not valid")
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "stint/"+version)
	r.Header.Set(HeaderDelivery, d.ID)
	r.Header.Set(HeaderAttempt, strconv.Itoa(d.Attempts))
	if w.Secret != "" {
		r.Header.Set(HeaderSignature, Sign(w.Secret, now, body))
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0, reason(err)
	}
	defer answer.Body.Close()
	_, _ = io.CopyN(io.Discard, answer.Body, maxAnswer) // its end does not matter
	switch status = answer.StatusCode; {
	case status >= http.StatusMultipleChoices && status < http.StatusBadRequest:
		return status, fmt.Errorf("it answers %d, and redirects are not followed", status)
	case status < http.StatusOK || status >= http.StatusMultipleChoices:
		return status, fmt.Errorf("it answers %d", status)
	}
	return status, nil
}

// reason returns an error of a client without its URL, which may have a secret.
func reason(err error) error {
	var of *url.Error
	if errors.As(err, &of) {
		if of.Timeout() {
			return fmt.Errorf("no answer within %v", attemptTime)
		}
		err = of.Err
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return errors.New("the name of its host cannot be resolved")
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	return err
}
