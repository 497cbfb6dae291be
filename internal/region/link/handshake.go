package link

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/stintdev/stint/internal/region/gossip"
	"github.com/stintdev/stint/internal/region/link/linkpb"
)

const (
	version   = 1
	nonceSize = 32
	maxHello  = 64 << 10
)

// Who seals a hello. The one cannot be taken for the other.
const (
	byClient = "stint region link: client"
	byServer = "stint region link: server"
)

func newNonce() []byte {
	nonce := make([]byte, nonceSize)
	_, _ = rand.Read(nonce) // never fails
	return nonce
}

// seal returns the proof that someone knows the secret and has seen these nonces, or none if there is no
// secret.
func seal(secret []byte, by string, hello []byte, nonces ...[]byte) []byte {
	if len(secret) == 0 {
		return nil
	}
	h := hmac.New(sha256.New, secret)
	for _, part := range append([][]byte{[]byte(by), hello}, nonces...) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	return h.Sum(nil)
}

// hello returns what this node says of itself as a client.
func (i *Identity) hello(nonce []byte) ([]byte, error) {
	m := &linkpb.Hello{Version: version, Region: i.Self.Region, Node: i.Self.Node, Run: i.Self.Run, Nonce: nonce, Central: i.Central}
	for _, r := range i.Regions {
		m.Regions = append(m.Regions, &linkpb.Region{Name: r.Name, Weight: r.Weight})
	}
	return proto.Marshal(m)
}

// welcome answers a client's hello, with the secret by which that was proved.
func (i *Identity) welcome(nonce []byte, client *linkpb.Hello, secret []byte) (*linkpb.Sealed, error) {
	hello, err := proto.Marshal(&linkpb.Hello{
		Version: client.GetVersion(), Region: i.Self.Region, Node: i.Self.Node, Run: i.Self.Run,
	})
	return &linkpb.Sealed{Hello: hello, Mac: seal(secret, byServer, hello, nonce, client.GetNonce())}, err
}

// prove returns the secret by which a client that has got this nonce has sealed its hello, or none if there are
// certificates alone. Certificate is the one that TLS has verified, or nil.
func (i *Identity) prove(m *linkpb.Sealed, nonce []byte, certificate *x509.Certificate) (secret []byte, err error) {
	secrets := i.Secrets()
	switch {
	case len(secrets) == 0 && certificate == nil:
		return nil, refuse(WrongSecret, "neither a secret nor a certificate")
	case len(m.GetHello()) > maxHello:
		return nil, refuse(BadMessage, "a hello of %d bytes, want at most %d", len(m.GetHello()), maxHello)
	case len(secrets) == 0:
		secrets = [][]byte{nil}
	}
	for _, secret := range secrets {
		if hmac.Equal(m.GetMac(), seal(secret, byClient, m.GetHello(), nonce)) {
			return secret, nil
		}
	}
	return nil, refuse(WrongSecret, "another secret than region %s has, or a stream that was recorded", i.Self.Region)
}

// check reads the hello of a client, which is proved: nothing of it is believed before.
func (i *Identity) check(m *linkpb.Sealed, certificate *x509.Certificate) (*linkpb.Hello, error) {
	hello := new(linkpb.Hello)
	if err := unpack(m.GetHello(), 6, MaxRegions, hello); err != nil {
		return nil, err
	}
	region := hello.GetRegion()
	switch {
	case hello.GetVersion() < 1 || hello.GetVersion() > version:
		return nil, refuse(NewerVersion, "protocol version %d, and region %s knows up to %d", hello.GetVersion(), i.Self.Region, version)
	case len(hello.GetNonce()) != nonceSize || !validName(hello.GetNode()):
		return nil, refuse(BadMessage, "a hello without a node or a nonce")
	case region == i.Self.Region:
		return nil, refuse(OwnRegion, "region %s is this one", region)
	case !i.knows(region):
		return nil, refuse(UnknownRegion, "region %q is not one of the peers of region %s", region, i.Self.Region)
	case certificate != nil && certificate.Subject.CommonName != region && !slices.Contains(certificate.DNSNames, region):
		return nil, refuse(WrongCertificate, "the certificate is not for region %s: want it as a DNS name or as the common name", region)
	}
	return hello, i.sameTable(hello)
}

// sameTable reports whether the client knows other regions.
func (i *Identity) sameTable(hello *linkpb.Hello) error {
	theirs := make([]Region, len(hello.GetRegions()))
	for n, r := range hello.GetRegions() {
		theirs[n] = Region{r.GetName(), r.GetWeight()}
	}
	sameNames := func(a, b Region) bool { return a.Name == b.Name }
	switch {
	case slices.Equal(theirs, i.Regions) && hello.GetCentral() != i.Central:
		return refuse(OtherCentral, "for region %s the central region is %q, and for region %s %q", hello.GetRegion(), hello.GetCentral(), i.Self.Region, i.Central)
	case slices.Equal(theirs, i.Regions):
		return nil
	case !slices.EqualFunc(theirs, i.Regions, sameNames):
		return refuse(OtherNames, "region %s knows %v, and region %s knows %v", hello.GetRegion(), theirs, i.Self.Region, i.Regions)
	default:
		return refuse(OtherWeights, "region %s has the weights %v, and region %s has %v", hello.GetRegion(), theirs, i.Self.Region, i.Regions)
	}
}

// String returns the region and its weight.
func (r Region) String() string { return fmt.Sprintf("%s=%d", r.Name, r.Weight) }

// answer returns the client's hello, and a function that checks the server's answer to it.
func (o *Options) answer(challenge []byte) (*linkpb.Sealed, func(*linkpb.Sealed) (gossip.Sender, error), error) {
	if len(challenge) != nonceSize {
		return nil, nil, fmt.Errorf("the server begins with %d bytes, want a nonce of %d", len(challenge), nonceSize)
	}
	var secret []byte
	if secrets := o.Secrets(); len(secrets) > 0 {
		secret = secrets[0]
	}
	nonce := newNonce()
	hello, err := o.hello(nonce)
	if err != nil {
		return nil, nil, err
	}
	check := func(m *linkpb.Sealed) (gossip.Sender, error) {
		var from gossip.Sender
		if !hmac.Equal(m.GetMac(), seal(secret, byServer, m.GetHello(), challenge, nonce)) {
			return from, errors.New("the server has another secret")
		}
		welcome := new(linkpb.Hello)
		if err := unpack(m.GetHello(), 6, MaxRegions, welcome); err != nil {
			return from, err
		}
		from = gossip.Sender{Region: welcome.GetRegion(), Node: welcome.GetNode(), Run: welcome.GetRun()}
		switch {
		case welcome.GetVersion() < 1 || welcome.GetVersion() > version:
			return from, fmt.Errorf("the server speaks version %d, and this node knows up to %d", welcome.GetVersion(), version)
		case from.Region != o.Region:
			return from, fmt.Errorf("at %s is region %q, want %s", o.URL, from.Region, o.Region)
		case !validName(from.Node):
			return from, errors.New("the server does not say which node it is")
		}
		return from, nil
	}
	return &linkpb.Sealed{Hello: hello, Mac: seal(secret, byClient, hello, challenge)}, check, nil
}
