package link_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/region/gossip"
	"github.com/stintdev/stint/internal/region/link"
	"github.com/stintdev/stint/internal/region/link/linkpb"
	"github.com/stintdev/stint/internal/test/wait"
	"github.com/stintdev/stint/memstore"
)

// TestMain fails if a goroutine of a link or a server is left.
func TestMain(m *testing.M) {
	code := m.Run()
	for end := time.Now().Add(5 * time.Minute); code == 0; <-time.After(time.Millisecond) {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		if !strings.Contains(string(stacks), "google.golang.org/grpc") {
			break
		}
		if time.Now().After(end) {
			fmt.Fprintf(os.Stderr, "goroutines are left:\n%s\n", stacks)
			code = 1
		}
	}
	os.Exit(code)
}

const secret = "0123456789abcdef"

// secrets returns what returns these.
func secrets(all ...string) func() [][]byte {
	return func() (out [][]byte) {
		for _, s := range all {
			out = append(out, []byte(s))
		}
		return out
	}
}

// identity returns a node of a region, of which there are eu and us.
func identity(region string) link.Identity {
	i := link.Identity{
		Self:    gossip.Sender{Region: region, Node: region + "-1", Run: 7},
		Regions: []link.Region{{Name: "us", Weight: 60}, {Name: "eu", Weight: 40}},
		Secrets: secrets(secret),
		Clock:   func() int64 { return time.Now().UnixMicro() },
	}
	i.Hasten()
	return i
}

// receive is a receiver.
type receive func(ctx context.Context, from gossip.Sender, b gossip.Batch) error

func (r receive) Receive(ctx context.Context, from gossip.Sender, b gossip.Batch) error {
	return r(ctx, from, b)
}

// ignore receives everything.
var ignore = receive(func(context.Context, gossip.Sender, gossip.Batch) error { return nil })

func do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// memory returns a store in memory.
func memory(t testing.TB, now func() time.Time) stint.Store {
	t.Helper()
	s, err := memstore.New(memstore.Options{Now: now})
	do(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// serve starts a server of region us, and returns its address. The server ends with the test.
func serve(t testing.TB, change func(*link.ServerOptions)) (*link.Server, string) {
	t.Helper()
	return serveAt(t, "127.0.0.1:0", change)
}

func serveAt(t testing.TB, addr string, change func(*link.ServerOptions)) (*link.Server, string) {
	t.Helper()
	o := link.ServerOptions{Identity: identity("us"), Receiver: ignore}
	if change != nil {
		change(&o)
	}
	s, err := link.NewServer(o)
	do(t, err)
	l, err := net.Listen("tcp", addr)
	do(t, err)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, l.Addr().String()
}

// open opens a link of region eu to an address. It ends with the test.
func open(t testing.TB, addr string, change func(*link.Options)) *link.Link {
	t.Helper()
	o := link.Options{Identity: identity("eu"), Region: "us", URL: "http://" + addr}
	if change != nil {
		change(&o)
	}
	l, err := link.Open(o)
	do(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// connected waits until the link is up.
func connected(t testing.TB, l *link.Link) *link.Link {
	t.Helper()
	wait.For(t, "the link is up", func() bool { return l.State().Up })
	return l
}

// raw is a client whose messages the test writes.
type raw struct {
	grpc.BidiStreamingClient[linkpb.Frame, linkpb.Frame]
	challenge []byte
}

// dial opens a stream, and reads the challenge.
func dial(t testing.TB, addr string) *raw {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	do(t, err)
	t.Cleanup(func() { conn.Close() })
	s, err := linkpb.NewLinkClient(conn).Open(t.Context())
	do(t, err)
	f, err := s.Recv()
	do(t, err)
	return &raw{s, f.GetChallenge()}
}

// greet sends a hello, and returns what the server says to it.
func (r *raw) greet(t testing.TB, m *linkpb.Sealed) error {
	t.Helper()
	do(t, r.Send(&linkpb.Frame{Kind: &linkpb.Frame_Hello{Hello: m}}))
	f, err := r.Recv()
	if err == nil && f.GetWelcome() == nil {
		t.Fatalf("%v instead of a welcome", f)
	}
	return err
}

// login opens a stream, and does the handshake.
func login(t testing.TB, addr string) *raw {
	t.Helper()
	r := dial(t, addr)
	m, err := identity("eu").Answer(r.challenge, nil)
	do(t, err)
	do(t, r.greet(t, m))
	return r
}

// end reads until the stream ends, and returns how.
func (r *raw) end() error {
	for {
		if _, err := r.Recv(); err != nil {
			return err
		}
	}
}

func limit(t testing.TB, text string) stint.Limit {
	t.Helper()
	l, err := stint.ParseLimit(text)
	do(t, err)
	return l
}

// batch returns a batch with this number and an entry of as many units.
func batch(number uint64) gossip.Batch {
	return gossip.Batch{Number: number, Entries: []gossip.Entry{{
		Key: stint.Key{Subject: "alice", Name: "search:hourly"}, Limit: stint.PerHour(100), At: 1_800_000_000_000_000, Units: int64(number),
	}}}
}

// lines is a log.
type lines struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(p)
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.out.String(), text)
}

// TestOptions tries options that must be rejected, with errors that name them.
func TestOptions(t *testing.T) {
	t.Parallel()
	for says, change := range map[string]func(*link.Options){
		`Regions "1 of them"`:       func(o *link.Options) { o.Regions = o.Regions[:1] },
		`Regions "eu": want each`:   func(o *link.Options) { o.Regions = append(o.Regions, o.Regions[1]) },
		`Regions ""`:                func(o *link.Options) { o.Regions = append(slices.Clone(o.Regions), link.Region{}) },
		`Self.Region "asia"`:        func(o *link.Options) { o.Self.Region = "asia" },
		`Self.Node ""`:              func(o *link.Options) { o.Self.Node = "" },
		`Secrets "15 bytes"`:        func(o *link.Options) { o.Secrets = secrets(secret, secret[1:]) },
		`Secrets "": want a secret`: func(o *link.Options) { o.Secrets = nil },
		`Clock "nil"`:               func(o *link.Options) { o.Clock = nil },
		`Region "eu"`:               func(o *link.Options) { o.Region = "eu" },
		`Region "asia"`:             func(o *link.Options) { o.Region = "asia" },
		`URL "127.0.0.1:1"`:         func(o *link.Options) { o.URL = "127.0.0.1:1" },
		`URL "http://host"`:         func(o *link.Options) { o.URL = "http://host" },
		`URL "http://a:1/path"`:     func(o *link.Options) { o.URL = "http://a:1/path" },
	} {
		o := link.Options{Identity: identity("eu"), Region: "us", URL: "http://127.0.0.1:1"}
		change(&o)
		if l, err := link.Open(o); err == nil {
			l.Close()
			t.Errorf("%s: no error", says)
		} else if !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %s", err, says)
		}
	}
	if _, err := link.NewServer(link.ServerOptions{Identity: identity("us")}); err == nil || !strings.Contains(err.Error(), "Receiver") {
		t.Errorf("a server without a receiver: %v", err)
	}
}
