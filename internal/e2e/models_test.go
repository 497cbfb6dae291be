package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stintdev/stint/internal/test/testllm"
	"github.com/stintdev/stint/internal/test/testredis"
	"github.com/stintdev/stint/internal/test/wait"
)

// teamLimit is how many tokens the team of TestModelStreams has.
const teamLimit = 18_000

// fate is what becomes of a stream.
type fate int

const (
	whole fate = iota // it ends as it should
	left              // its client leaves after the first piece
	died              // its provider breaks off after two pieces
	stuck             // it waits after the first piece, until its node is killed
)

// modelStream is a stream of an answer of a language model, and what its client has seen.
type modelStream struct {
	id         string
	node       int
	fate       fate
	path, body string
	hidden     bool // the client has not asked for usage, and must not get it
	input      int64
	output     int64
	gate       chan struct{} // closed when it may begin

	status   int
	reserved int64 // what its counter had when nothing was settled
}

// newStream returns a stream with a random request and random usage. Many have declared a cap, and many use less.
func newStream(i int) *modelStream {
	s := &modelStream{id: fmt.Sprintf("stream-%d", i), node: i % 2, input: 1 + rand.Int64N(30), output: 1 + rand.Int64N(200)}
	request := map[string]any{"model": "test", "stream": true}
	limit := 10 + rand.IntN(110)
	prompt := []any{map[string]any{"role": "user", "content": strings.Repeat("How many? ", rand.IntN(6))}}
	switch i % 4 {
	case 0:
		s.path, s.hidden = "/openai/v1/chat/completions", true
		request["messages"] = prompt
		if i%16 == 0 {
			request["n"] = 2
		}
	case 1:
		s.path = "/openai/v1/chat/completions"
		request["messages"], request["stream_options"] = prompt, map[string]any{"include_usage": true}
	case 2:
		s.path = "/openai/v1/responses"
		request["input"] = prompt
	case 3:
		s.path = "/anthropic/v1/messages"
		request["messages"] = prompt
	}
	if i%7 != 0 {
		request[map[bool]string{true: "max_output_tokens", false: "max_tokens"}[i%4 == 2]] = limit
	}
	body, err := json.Marshal(request)
	if err != nil {
		panic(err)
	}
	s.body = string(body)
	return s
}

// step is the course of the stream at the provider.
func (s *modelStream) step(ctx context.Context, piece int) error {
	switch {
	case piece == 0:
		select {
		case <-s.gate:
		case <-ctx.Done():
		}
	case piece == 1 && (s.fate == left || s.fate == stuck):
		<-ctx.Done()
	case piece == 2 && s.fate == died:
		return errors.New("the provider dies")
	}
	return ctx.Err()
}

// read sends the request, and reads the stream to the end that it should have. It calls answered when there is a status.
func (s *modelStream) read(ctx context.Context, transport *http.Transport, gateway string, answered func()) error {
	answered = sync.OnceFunc(answered)
	defer answered()
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway+s.path, strings.NewReader(s.body))
	if err != nil {
		return err
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Authorization": "Bearer sk", "X-Request-Id": s.id, "X-User-ID": s.id, "X-Tenant-ID": "team",
	} {
		r.Header.Set(name, value)
	}
	res, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	s.status = res.StatusCode
	answered()
	if s.status != http.StatusOK {
		_, err = io.Copy(io.Discard, res.Body)
		return err
	}
	var text bytes.Buffer
	for piece := make([]byte, 4<<10); err == nil; {
		var n int
		n, err = res.Body.Read(piece)
		text.Write(piece[:n])
		if s.fate == left && strings.Contains(text.String(), "word0") {
			return nil
		}
	}
	if ended := errors.Is(err, io.EOF); ended != (s.fate == whole) {
		return fmt.Errorf("it ended with %w after\n%s", err, text.String())
	}
	usage := strings.Contains(text.String(), `"usage":{`)
	if s.fate == whole && (usage == s.hidden || !strings.Contains(text.String(), "word2")) {
		return fmt.Errorf("the client got\n%s", text.String())
	}
	return nil
}

// counted returns what the counters of streams have, and that of their team, without counting anything.
func counted(t testing.TB, s *server, streams []*modelStream) (each []int64, team int64) {
	t.Helper()
	for part := range slices.Chunk(streams, 1000) {
		var ask struct {
			Requests []map[string]any `json:"requests"`
		}
		for _, one := range part {
			ask.Requests = append(ask.Requests, map[string]any{"path": "/", "user": one.id, "tenant": "team", "peek": true})
		}
		body, err := json.Marshal(ask)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.Post(s.api+"/v1/check/batch", "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var answer struct {
			Verdicts []struct {
				Limits []struct {
					Name           string
					Max, Remaining int64
				}
			}
		}
		if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || len(answer.Verdicts) != len(part) {
			t.Fatalf("%s: %d verdicts, %v", res.Status, len(answer.Verdicts), err)
		}
		for _, v := range answer.Verdicts {
			for _, l := range v.Limits {
				if l.Name == "team" {
					team = l.Max - l.Remaining
				} else {
					each = append(each, l.Max-l.Remaining)
				}
			}
		}
	}
	if len(each) != len(streams) {
		t.Fatalf("there are %d counters, want %d", len(each), len(streams))
	}
	return each, team
}

// modelFigures are figures of a node about the rule of the team.
type modelFigures struct{ reserved, used, overshoot int64 }

func (f *modelFigures) add(t testing.TB, s *server) {
	t.Helper()
	of := s.scrape(t)
	figure := func(what string) int64 {
		return int64(of[fmt.Sprintf(`stint_units_total{meter="llm.total_tokens",rule="team",what=%q}`, what)])
	}
	f.reserved += figure("reserved")
	f.used += figure("used")
	f.overshoot += figure("overshoot")
}

// settled returns an error unless what is counted for streams is what they have used, and what the nodes say of it,
// beside the figures of those that are gone, agrees with that.
func settled(t testing.TB, p *testllm.Provider, streams []*modelStream, said modelFigures, nodes ...*server) error {
	t.Helper()
	each, team := counted(t, nodes[0], streams)
	reported := map[string]int64{}
	for _, sent := range p.Ledger() {
		if sent.Reported {
			reported[sent.ID] = sent.Input + sent.Output
		}
	}
	var sum, used, overshoot int64
	for i, s := range streams {
		got := each[i]
		if err := s.right(got, reported[s.id]); err != nil {
			return fmt.Errorf("%s, with fate %d: %w", s.id, s.fate, err)
		}
		if sum += got; s.fate != stuck {
			used += got
			overshoot += max(0, got-s.reserved)
		}
	}
	for _, node := range nodes {
		said.add(t, node)
	}
	if team > teamLimit+said.overshoot {
		return fmt.Errorf("the team has used %d tokens", team)
	}
	if team != sum || said.used != used || said.overshoot != overshoot {
		return fmt.Errorf("%d tokens are counted for streams and %d for their team; %d were used by those that have ended, %d beyond what was reserved, and the metrics say %+v",
			sum, team, used, overshoot, said)
	}
	return nil
}

// right returns an error unless what is counted is what was used: as reported or, if it was not, about what has passed.
func (s *modelStream) right(got, reported int64) error {
	const most = 100 // a prompt of at most 12 words, and two pieces of two answers
	switch {
	case s.status != http.StatusOK && got != 0:
		return fmt.Errorf("it was refused, and %d tokens are counted", got)
	case s.status != http.StatusOK:
	case s.fate == whole && (reported == 0 || got != reported):
		return fmt.Errorf("%d tokens were reported, and %d are counted", reported, got)
	case s.fate == stuck && got != s.reserved:
		return fmt.Errorf("it has not ended: %d tokens were reserved, and %d are counted", s.reserved, got)
	case reported == 0 && (got == 0 || got > most && s.fate != stuck):
		return fmt.Errorf("nothing was reported, and %d tokens are counted", got)
	}
	return nil
}

// TestModelStreams has a team ask for more streams than its limit of 18,000 tokens has room for, at once, through two
// nodes. Then they stream: clients leave, the provider dies, and a node is killed. What was reserved is never more than
// the limit; and what is counted is what the provider has reported, to the token, for every stream that it has
// reported.
func TestModelStreams(t *testing.T) {
	t.Parallel()
	const (
		tries = 300 // at about 77 tokens each
		more  = 15  // are open when a node is killed
	)
	gates := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	var streams []*modelStream
	byID := map[string]*modelStream{}
	for i := range tries + more {
		s := newStream(i)
		switch s.gate = gates[0]; {
		case i >= tries:
			s.node, s.gate = 1, gates[1]
		case i%10 == 4:
			s.fate = left
		case i%10 == 5:
			s.fate = died
		case i%50 == 2:
			s.fate = stuck // of node 0
		}
		streams = append(streams, s)
		byID[s.id] = s
	}
	p := &testllm.Provider{Decide: func(c testllm.Call) testllm.Answer {
		s := byID[c.ID]
		return testllm.Answer{Input: s.input, Output: s.output, Step: s.step}
	}}
	config := models(provide(t, p), fmt.Sprintf(`
[[rules]]
name     = "team"
count_by = ["tenant"]
cost     = { meter = "llm.total_tokens", reserve = 60 }
limits   = [{ name = "team", limit = "%d/1000h fixed_window" }]
on_store_failure = "closed"

[[rules]]
name     = "each"
count_by = ["user"]
cost     = { meter = "llm.total_tokens", reserve = 60 }
limits   = [{ name = "each", limit = "%d/1000h fixed_window" }]
on_store_failure = "closed"
`, teamLimit, teamLimit))
	redis := testredis.Start(t)
	var nodes []*server
	for range 2 {
		nodes = append(nodes, serve(t, config, append(counting(redis.URL()), "STINT_SERVER_ADMIN_ADDRESS=127.0.0.1:0")...))
	}
	if each, team := counted(t, nodes[0], streams[:1]); each[0] != 0 || team != 0 {
		t.Fatalf("%d and %d were used before anything was", each[0], team)
	}

	transport := &http.Transport{MaxIdleConnsPerHost: tries, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	var clients sync.WaitGroup
	// open sends the requests of streams, and returns what is reserved for them when all are open or refused.
	open := func(streams []*modelStream) (reserved int64) {
		var answers sync.WaitGroup
		asking := make(chan struct{}, 64)
		for _, s := range streams {
			asking <- struct{}{}
			answers.Add(1)
			clients.Go(func() {
				if err := s.read(t.Context(), transport, nodes[s.node].gateway, func() { <-asking; answers.Done() }); err != nil {
					t.Errorf("%s, with fate %d: %v", s.id, s.fate, err)
				}
			})
		}
		answers.Wait()
		each, _ := counted(t, nodes[1], streams)
		for i, s := range streams {
			if s.reserved = each[i]; (s.reserved > 0) != (s.status == http.StatusOK) {
				t.Errorf("%s got %d, and %d tokens are reserved", s.id, s.status, s.reserved)
			}
			reserved += s.reserved
		}
		return reserved
	}

	reserved := open(streams[:tries])
	_, most := p.Open()
	_, team := counted(t, nodes[1], streams[:1])
	if reserved != team || reserved > teamLimit || most < tries/2 || most == tries {
		t.Errorf("%d tokens are reserved for %d of %d streams, and the team's counter has %d; want at most %d", reserved, most, tries, team, teamLimit)
	}
	close(gates[0])
	wait.Nil(t, "the first streams are settled", func() error { return settled(t, p, streams[:tries], modelFigures{}, nodes...) })

	var gone modelFigures
	gone.add(t, nodes[0])
	open(streams[tries:])
	nodes[0].kill(t)
	close(gates[1])
	clients.Wait()
	wait.Nil(t, "the others are settled", func() error { return settled(t, p, streams, gone, nodes[1]) })
	for _, s := range streams[tries:] {
		if s.status != http.StatusOK {
			t.Errorf("%s got %d, though there was room", s.id, s.status)
		}
	}
}
