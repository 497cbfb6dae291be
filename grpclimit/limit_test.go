package grpclimit_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit"
	"github.com/stintdev/stint/memstore"
)

func newStore(tb testing.TB) stint.Store {
	tb.Helper()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = store.Close() })
	return store
}

// caller is the context of a call from an address, with metadata given as names and
// values.
func caller(tb testing.TB, address string, md ...string) context.Context {
	tb.Helper()
	from := net.Addr(&net.UnixAddr{Net: "unix"})
	if address != "" {
		from = &net.TCPAddr{IP: net.ParseIP(address), Port: 4711}
	}
	return metadata.NewIncomingContext(peer.NewContext(tb.Context(), &peer.Peer{Addr: from}), metadata.Pairs(md...))
}

// TestLimitCounters checks who shares a counter: a second call under a limit of one is
// denied if it is counted as the first was.
func TestLimitCounters(t *testing.T) {
	t.Parallel()
	user := grpclimit.ByFunc(func(ctx context.Context, _ string) string {
		return strings.Join(metadata.ValueFromIncomingContext(ctx, "user"), "")
	})
	proxied := grpclimit.ByMetadata("x-user").Behind("10.0.0.0/8")
	for name, c := range map[string]struct {
		by            grpclimit.By
		first, second context.Context
		code          codes.Code
	}{
		"peer":                    {grpclimit.ByPeer, caller(t, "192.0.2.1"), caller(t, "192.0.2.1"), codes.ResourceExhausted},
		"zero value":              {grpclimit.By{}, caller(t, "192.0.2.1"), caller(t, "192.0.2.1"), codes.ResourceExhausted},
		"other peer":              {grpclimit.ByPeer, caller(t, "192.0.2.1"), caller(t, "192.0.2.2"), codes.OK},
		"IPv6 network":            {grpclimit.ByPeer, caller(t, "2001:db8::1"), caller(t, "2001:db8::2"), codes.ResourceExhausted},
		"no address":              {grpclimit.ByPeer, caller(t, ""), caller(t, ""), codes.ResourceExhausted},
		"x-forwarded-for ignored": {grpclimit.ByPeer, caller(t, "10.0.0.1", "x-forwarded-for", "1.1.1.1"), caller(t, "10.0.0.1", "x-forwarded-for", "2.2.2.2"), codes.ResourceExhausted},
		"proxy":                   {grpclimit.ByPeer.Behind("10.0.0.1"), caller(t, "10.0.0.1", "x-forwarded-for", "1.1.1.1"), caller(t, "10.0.0.1", "x-forwarded-for", "2.2.2.2"), codes.OK},
		"function":                {user, caller(t, "192.0.2.1", "user", "alice"), caller(t, "192.0.2.2", "user", "alice"), codes.ResourceExhausted},
		"function, other":         {user, caller(t, "192.0.2.1", "user", "alice"), caller(t, "192.0.2.1", "user", "bob"), codes.OK},
		"function, no key":        {user, caller(t, "192.0.2.1"), caller(t, "192.0.2.1"), codes.ResourceExhausted},
		"metadata":                {proxied, caller(t, "10.0.0.1", "x-user", "alice"), caller(t, "10.0.0.2", "x-user", "alice"), codes.ResourceExhausted},
		"metadata, other":         {proxied, caller(t, "10.0.0.1", "x-user", "alice"), caller(t, "10.0.0.1", "x-user", "bob"), codes.OK},
		"metadata of a client":    {proxied, caller(t, "192.0.2.1", "x-user", "alice"), caller(t, "192.0.2.1", "x-user", "bob"), codes.ResourceExhausted},
		"metadata twice":          {proxied, caller(t, "10.0.0.1"), caller(t, "10.0.0.2", "x-user", "alice", "x-user", "bob"), codes.Unauthenticated},
	} {
		limit, err := grpclimit.Limit(newStore(t), "1/1h", c.by)
		if err != nil {
			t.Fatal(err)
		}
		call := func(ctx context.Context, method string) codes.Code {
			_, err := limit.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) { return nil, nil })
			return status.Code(err)
		}
		if code := call(c.first, "/shop.v1.Orders/Create"); code != codes.OK {
			t.Errorf("%s: the first call has %s", name, code)
		}
		if code := call(c.second, "/shop.v1.Orders/List"); code != c.code {
			t.Errorf("%s: the second call has %s, want %s", name, code, c.code)
		}
	}
}

// TestRequired checks that a constructor which lacks something says what.
func TestRequired(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	_, noEngine := grpclimit.New(grpclimit.Options{})
	limit := func(store stint.Store, limit string, by grpclimit.By) error {
		_, err := grpclimit.Limit(store, limit, by)
		return err
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{noEngine, `Engine "nil": want what engine.New returns`},
		{limit(nil, "1/1h", grpclimit.ByPeer), `store "nil": want a store, such as memstore.New returns`},
		{limit(store, "", grpclimit.ByPeer), `limit "": want`},
		{limit(store, "1/1h", grpclimit.ByFunc(nil)), `ByFunc "nil": want a function`},
		{limit(store, "1/1h", grpclimit.ByMetadata("").Behind("10.0.0.1")), `ByMetadata "": want a name, such as X-User-ID`},
		{limit(store, "1/1h", grpclimit.ByMetadata("x-user")), `ByMetadata "x-user": want Behind with the networks of the proxies`},
		{limit(store, "1/1h", grpclimit.ByPeer.Behind("proxy")), `Behind "proxy": want an address or a network`},
		{limit(store, "1/1h", grpclimit.ByPeer.Named("-")), `Named "-": want letters, digits`},
	} {
		if bad := new(stint.InvalidError); !errors.As(c.err, &bad) || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%v, want %s", c.err, c.want)
		}
	}
}
