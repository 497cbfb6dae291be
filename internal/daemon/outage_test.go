package daemon_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
)

// used returns how many units of the rule metered this node sees used in Redis, or -1 while it does not see Redis.
func (p *process) used(t *testing.T) int64 {
	t.Helper()
	_, body := p.send(t, p.client, "POST", p.URL("http")+"/v1/check", `{"path":"/","peek":true}`)
	var got struct {
		Limits []struct {
			Max, Remaining int64
			Basis          string
		}
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || len(got.Limits) != 1 {
		t.Fatal(body)
	}
	if l := got.Limits[0]; l.Basis == "" {
		return l.Max - l.Remaining
	}
	return -1
}

// TestTicketsInOutage has Redis go away for two nodes. A settlement is not acknowledged before Redis has it, and is made
// once then, on whatever node. A node that stops charges what it has admitted alone, or says how much it could not.
func TestTicketsInOutage(t *testing.T) {
	t.Parallel()
	redis := testredis.Start(t)
	proxy := testredis.StartProxy(t, redis)
	text := fmt.Sprintf("[server]\ncounters = %q\nticket_key_file = %q\n", proxy.URL()+patient, write(t, "keys", strings.Repeat("a", 32)+"\n")) +
		strings.ReplaceAll(metered, "/1h", "/1000h")
	a, b := start(t, text), start(t, text)
	sees := func(want int64) {
		t.Helper()
		wait.For(t, fmt.Sprint(want, " units used"), func() bool { return b.used(t) == want })
	}
	stored := a.reserve(t)
	sees(100)
	proxy.Set(t, testredis.Fault{Refuse: true})
	alone := a.reserve(t)
	for _, ticket := range []string{stored, alone} {
		for name, p := range map[string]*process{"its node": a, "the other node": b} {
			if code := p.commit(t, ticket); code != 503 {
				t.Errorf("while Redis is away, %s: %d; want 503", name, code)
			}
		}
	}
	proxy.Set(t, testredis.Fault{})
	for _, ticket := range []string{stored, alone} {
		for _, p := range []*process{a, b, a} {
			wait.For(t, "a settlement", func() bool { return p.commit(t, ticket) == 200 })
		}
	}
	sees(14)

	proxy.Set(t, testredis.Fault{Refuse: true})
	a.reserve(t)
	proxy.Set(t, testredis.Fault{})
	if err := a.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	sees(114)

	proxy.Set(t, testredis.Fault{Refuse: true})
	b.reserve(t)
	if err := b.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if log := b.log.String(); !strings.Contains(log, `"never charged":100`) && !strings.Contains(log, `"never charged"=100`) {
		t.Errorf("the log does not say what is lost:\n%s", log)
	}
}
