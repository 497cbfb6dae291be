package daemon

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/stintdev/stint/grpclimit/stintpb"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/daemon/envoyenv"
	"github.com/stintdev/stint/internal/kit/strict"
)

// tokens are the hashes of the tokens of a listener.
type tokens [][sha256.Size]byte

// has reports whether text is one of the tokens, in a time that does not tell how close it
// is.
func (t tokens) has(text string) bool {
	hash, found := sha256.Sum256([]byte(text)), 0
	for i := range t {
		found |= subtle.ConstantTimeCompare(hash[:], t[i][:])
	}
	return found == 1
}

// tokenPointer is the tokens of a listener, or nil if callers need none. A reload replaces
// them.
type tokenPointer struct{ atomic.Pointer[tokens] }

func (p *tokenPointer) replace(next tokens) {
	if len(next) == 0 {
		p.Store(nil)
	} else {
		p.Store(&next)
	}
}

// Open reports whether every machine that can reach the listener can use it, without a
// token or a certificate.
func (g *Guarded) Open() bool {
	return g.Address != "" && !strings.HasPrefix(g.Address, unixPrefix) && !envoyenv.IsLoopback(g.Address) &&
		len(g.Tokens) == 0 && len(g.TokenFiles) == 0 && g.TLSClientCA == ""
}

// readTokens reads the tokens of a listener.
func (k *checker) readTokens(name string, g *Guarded) {
	path := "server." + name
	var all tokens
	add := func(path string, text identity.Secret) {
		hash := sha256.Sum256([]byte(text))
		switch admin := k.config.credentials.adminToken; {
		case !fitToken(text):
			k.Add(path, wantToken, "")
		case all.has(string(text)):
			k.Add(path, "is there already, want another", "")
		case text == admin:
			k.Add(path, "is the admin token, which can do much more: want another", "")
		default:
			all = append(all, hash)
		}
	}
	for i, text := range g.Tokens {
		add(strict.Item(path+".tokens", i), text)
	}
	for i, file := range g.TokenFiles {
		item := strict.Item(path+".token_files", i)
		text, err := k.config.readNamed(file)
		k.config.named[len(k.config.named)-1].other = true
		if err != nil {
			k.refuseFile(item, file, err)
			continue
		}
		add(item, identity.Secret(text))
	}
	k.config.credentials.tokens[name] = all
}

const wantToken = "want at least 16 ASCII characters without spaces, such as openssl rand -hex 32 prints"

// fitToken reports whether a text can be a token, which clients send in a header.
func fitToken(text identity.Secret) bool {
	const shortest = 16
	unfit := func(r rune) bool { return r <= ' ' || r > '~' }
	return len(text) >= shortest && !strings.ContainsFunc(string(text), unfit)
}

// tokenHeader is where callers of forward-auth send their token: Authorization is the
// client's. Callers of other paths can use either.
const tokenHeader = "X-Stint-Token"

const forwardAuthPath = "/v1/forward-auth"

// guarded returns a handler for callers that send a token of server.http.tokens.
func (d *Daemon) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t := d.tokens.http.Load()
		if t == nil {
			next.ServeHTTP(w, r)
			return
		}
		text, want := r.Header.Get(tokenHeader), tokenHeader+": TOKEN"
		if r.URL.Path != forwardAuthPath {
			want = "Authorization: Bearer TOKEN or " + want
			if text == "" {
				text = bearer(r.Header.Get("Authorization"))
			}
		}
		if !t.has(text) {
			d.log.WarnContext(r.Context(), "http: token refused", "from", r.RemoteAddr, "path", r.URL.Path)
			w.Header().Set("WWW-Authenticate", `Bearer realm="stint"`)
			httplimit.Problem{Status: http.StatusUnauthorized, Detail: "want a token of server.http.tokens, as " + want}.Write(w, r)
			return
		}
		r.Header.Del(tokenHeader) // rules and records do not need it
		next.ServeHTTP(w, r)
	})
}

// bearer returns the token in the value of an Authorization header, or "".
func bearer(value string) string {
	scheme, text, _ := strings.Cut(value, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return text
}

// admitCall rejects gRPC calls without a token of server.grpc.tokens, before they are read. If there are none, those of
// server.http.tokens hold for reservations, to which this would be a way around them, and for reflection, which describes
// them. Health checks need none.
func (d *Daemon) admitCall(ctx context.Context, call *tap.Info) (context.Context, error) {
	t, setting := d.tokens.grpc.Load(), "server.grpc.tokens"
	if t == nil && (strings.HasPrefix(call.FullMethodName, "/"+stintpb.Reservations_ServiceDesc.ServiceName+"/") ||
		strings.HasPrefix(call.FullMethodName, "/grpc.reflection.")) {
		t, setting = d.tokens.http.Load(), "server.http.tokens"
	}
	if t == nil || strings.HasPrefix(call.FullMethodName, "/"+grpc_health_v1.Health_ServiceDesc.ServiceName+"/") {
		return ctx, nil
	}
	text := firstOf(call.Header, strings.ToLower(tokenHeader))
	if text == "" {
		text = bearer(firstOf(call.Header, "authorization"))
	}
	if t.has(text) {
		return ctx, nil
	}
	from := ""
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		from = p.Addr.String()
	}
	d.log.WarnContext(ctx, "grpc: token refused", "from", from, "method", call.FullMethodName)
	return ctx, status.Error(codes.Unauthenticated, "want a token of "+setting+", as the metadata authorization: Bearer TOKEN")
}

func firstOf(md metadata.MD, name string) string {
	if all := md.Get(name); len(all) > 0 {
		return all[0]
	}
	return ""
}
