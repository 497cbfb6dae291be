package identity_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/stintdev/stint/identity"
)

func Example() {
	text, key, err := identity.GenerateKey(rand.Reader, "stint", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	key.User, key.Tier = "ann", "premium"
	known := &directory{keys: map[string]*identity.Key{key.ID: &key}}

	resolver, err := identity.New(identity.Options{
		Directory:      known,
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resolver.Close()

	h := http.Header{}
	h.Set("X-Api-Key", text)
	h.Set("X-Forwarded-For", "127.0.0.1, 198.51.100.7")
	request := &identity.Request{Peer: netip.MustParseAddr("10.0.0.1"), Headers: h}

	var who identity.Subject
	err = resolver.Resolve(context.Background(), request, time.Now(), &who)
	fmt.Println(who.User, who.Tier, who.Source, who.IP, err)

	h.Set("X-Api-Key", text+"x")
	fmt.Println(resolver.Resolve(context.Background(), request, time.Now(), &who))
	// Output:
	// ann premium key 198.51.100.7 <nil>
	// identity: the API key is not valid
}
