package daemon_test

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/internal/test/wait"
)

// pair is two regions, whose connections lead through proxies.
type pair struct {
	dir     string // with the files of both
	proxies [2]*testserver.Proxy
	regions [2]*process
}

var pairNames = [2]string{"eu", "us"}

// file returns the path of a file of a region.
func (w *pair) file(i int, kind string) string { return filepath.Join(w.dir, pairNames[i]+"."+kind) }

// startPair starts two regions, with further settings for each. Its files have to be there.
func startPair(t *testing.T, w *pair, scheme string, region, listener func(i int) string) {
	t.Helper()
	var addresses [2]string
	for i := range addresses {
		addresses[i] = testserver.FreeAddr(t)
		w.proxies[i] = testserver.StartProxy(t, addresses[i])
	}
	for i := range w.regions {
		w.regions[i] = start(t, fmt.Sprintf("[region]\nname = %q\ninterval = \"100ms\"\n%s\n[region.listener]\naddress = %q\n%s\n[[region.peers]]\nname = %q\nurl = \"%s://%s\"\n",
			pairNames[i], region(i), addresses[i], listener(i), pairNames[1-i], scheme, w.proxies[1-i].Addr()))
	}
	for _, p := range w.regions {
		p.becomes(t, "regions", "ok", "")
	}
}

// since returns since when the link of a region is up, or zero if it is down.
func (w *pair) since(t *testing.T, i int) time.Time {
	t.Helper()
	if l := regionsOf(t, w.regions[i]).Links[0]; l.Up {
		return l.Since
	}
	return time.Time{}
}

// cut cuts all connections, so that both regions connect anew.
func (w *pair) cut(t *testing.T) {
	t.Helper()
	for _, p := range w.proxies {
		p.Set(t, testserver.Fault{Refuse: true})
		p.Set(t, testserver.Fault{})
	}
}

// again has both regions connect anew: neither refuses the other.
func (w *pair) again(t *testing.T, after string) {
	t.Helper()
	before := [2]time.Time{w.since(t, 0), w.since(t, 1)}
	w.cut(t)
	for i := range w.regions {
		wait.For(t, pairNames[i]+" has connected again after "+after, func() bool {
			since := w.since(t, i)
			return since.After(before[i])
		})
	}
	for i, p := range w.regions {
		r := regionsOf(t, p)
		for reason, n := range r.Refused {
			if n > 0 {
				t.Errorf("after %s, %s has refused %d streams: %s", after, pairNames[i], n, reason)
			}
		}
		if r.Links[0].Refused > 0 {
			t.Errorf("after %s, %s was refused", after, pairNames[i])
		}
		p.becomes(t, "regions", "ok", "")
	}
}

// TestRotateSecret replaces the secret of two regions in three steps, as docs/regions.md says: they accept each other
// all the time, though they connect anew whenever one of them is a step ahead.
func TestRotateSecret(t *testing.T) {
	t.Parallel()
	const old, next = "the secret of two regions", "their next secret, which is longer"
	w := &pair{dir: t.TempDir()}
	for i := range pairNames {
		put(t, w.file(i, "secret"), old+"\n")
	}
	startPair(t, w, "http", func(i int) string { return fmt.Sprintf("secret_file = %q", w.file(i, "secret")) }, func(int) string { return "" })
	for _, step := range []string{old + "\n" + next + "\n", next + "\r\n" + old + "\r\n", next} {
		for i, p := range w.regions {
			put(t, w.file(i, "secret"), step)
			do(t, p.Reload(t.Context()))
			w.again(t, fmt.Sprintf("%q in %s", step, pairNames[i]))
		}
	}
	// A configuration with a problem changes nothing.
	put(t, w.file(0, "secret"), next+"\n\n"+old)
	if err := w.regions[0].Reload(t.Context()); err == nil {
		t.Error("three lines are taken")
	}
	wait.For(t, "the problem is reported", func() bool { return w.regions[0].Health().Status != "ok" })
	put(t, w.file(0, "secret"), next)
	do(t, w.regions[0].Reload(t.Context()))

	// What was removed is not accepted.
	put(t, w.file(0, "secret"), old)
	do(t, w.regions[0].Reload(t.Context()))
	if since := w.since(t, 0); since.IsZero() {
		t.Error("a connection ends with its secret")
	}
	w.cut(t)
	for i, p := range w.regions {
		wait.For(t, pairNames[i]+" refuses the other", func() bool { return regionsOf(t, p).Refused["secret"] > 0 })
	}
}

// presents reports whether a server presents the certificate of a file.
func presents(t *testing.T, address, file string) bool {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	do(t, err)
	defer conn.Close()
	block, _ := pem.Decode(mustRead(t, file))
	return bytes.Equal(conn.ConnectionState().PeerCertificates[0].Raw, block.Bytes)
}

// TestRotateCertificates replaces certificates and their authorities of two regions that have no secret, without a
// restart: they accept each other all the time.
func TestRotateCertificates(t *testing.T) {
	t.Parallel()
	w := &pair{dir: t.TempDir()}
	trusted := filepath.Join(w.dir, "ca.crt")
	trust := func(kinds ...string) {
		var all []byte
		for i := range pairNames {
			for _, kind := range kinds {
				all = append(all, mustRead(t, w.file(i, kind))...)
			}
		}
		put(t, trusted, string(all))
	}
	for i, name := range pairNames {
		testserver.WritePair(t, w.file(i, "crt"), w.file(i, "key"), name)
		testserver.WritePair(t, w.file(i, "next.crt"), w.file(i, "next.key"), name)
		put(t, w.file(i, "old.crt"), string(mustRead(t, w.file(i, "crt"))))
	}
	trust("old.crt")
	startPair(t, w, "https", func(int) string { return "" }, func(i int) string {
		return fmt.Sprintf("tls_cert = %q\ntls_key = %q\ntls_client_ca = %q", w.file(i, "crt"), w.file(i, "key"), trusted)
	})
	reload := func(i int) {
		t.Helper()
		do(t, w.regions[i].Reload(t.Context()))
	}
	shows := func(i int, kind string) {
		t.Helper()
		if !presents(t, w.proxies[i].Addr(), w.file(i, kind)) {
			t.Errorf("%s does not present %s", pairNames[i], w.file(i, kind))
		}
	}
	shows(0, "old.crt")
	trust("old.crt", "next.crt")
	reload(0)
	w.again(t, "both authorities in eu")
	reload(1)
	w.again(t, "both authorities in us")
	for i, name := range pairNames {
		for _, kind := range []string{"crt", "key"} {
			put(t, w.file(i, kind), string(mustRead(t, w.file(i, "next."+kind))))
		}
		reload(i)
		shows(i, "next.crt")
		w.again(t, "the next certificate of "+name)
	}
	trust("next.crt")
	for i, name := range pairNames {
		reload(i)
		w.again(t, "only the next authorities in "+name)
	}
	// A certificate that is not trusted is not accepted, neither of a client nor of a server.
	testserver.WritePair(t, w.file(0, "crt"), w.file(0, "key"), "eu")
	reload(0)
	w.cut(t)
	for i := range w.regions {
		wait.For(t, pairNames[i]+" is not connected", func() bool { l := regionsOf(t, w.regions[i]).Links[0]; return !l.Up && l.Why != "" })
	}
}
