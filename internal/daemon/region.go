package daemon

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/identity"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// Region configures this region, and names the others. It is read at startup, except for secrets and certificates.
type Region struct {
	Name       string          `json:"name" doc:"the name of this region, as the others know it"`
	Weight     int             `json:"weight" doc:"this region's part of quotas, and of limits while other regions cannot be reached, in percent; all regions have one, 100 together, or none has and their parts are equal"`
	Central    string          `json:"central" doc:"the region that has the counters of central rules; the same in all regions"`
	Secret     identity.Secret `json:"secret" doc:"a secret of at least 16 bytes, the same in all regions, by which they know each other; or two, on a line each, to replace it: the first is presented to other regions, and both are accepted"`
	SecretFile string          `json:"secret_file" doc:"a file with the secret, or with two, reloaded when it changes"`
	Interval   Duration        `json:"interval" doc:"how often other regions are told what was used here, 100ms to 10s"`
	Listener   Listener        `json:"listener"`
	Peers      []Peer          `json:"peers,omitempty"`
}

// Peer is another region.
type Peer struct {
	Name   string `json:"name"`
	URL    URL    `json:"url"` // of its listener
	Weight int    `json:"weight,omitempty"`
}

const (
	maxPeers     = 15
	leastSecret  = 16  // bytes
	mostSecrets  = 2   // one, and while it is replaced its successor
	wholePercent = 100 // all weights together
	wantRegion   = "letters and digits, with . _ or - between them, at most 64 bytes"
)

// regions are all regions, as a valid configuration has them.
type regions struct {
	own      string
	central  string            // empty: none
	all      []weighted        // by name, so that the order is the same in every region
	secrets  []identity.Secret // empty: certificates alone say who is calling
	interval time.Duration
	listener door // its address may be empty
}

// weighted is a region and its weight, which means something beside those of the others only:
// they are percent, or 1 each.
type weighted struct {
	name   string
	url    string // empty: this region
	weight int
}

// hasRegion reports whether something of the regions is configured.
func (c *Config) hasRegion() bool {
	for name := range c.origins {
		if strings.HasPrefix(name, "region.") {
			return true
		}
	}
	return len(c.Region.Peers) > 0
}

// World returns the regions, as rules are checked against them.
func (c *Config) World() rule.World {
	if !c.hasRegion() {
		return rule.World{}
	}
	return rule.World{
		Regions: 1 + len(c.Region.Peers), Central: c.Region.Central != "", Fixed: c.Server.Database == "", Least: c.regions().least,
	}
}

// regions returns all regions, or nil if none is configured.
func (c *Config) regions() *regions {
	if !c.hasRegion() {
		return nil
	}
	r := &c.Region
	out := &regions{
		own: r.Name, central: r.Central, all: []weighted{{name: r.Name, weight: max(r.Weight, 1)}},
		secrets: c.credentials.regionSecrets, interval: time.Duration(r.Interval), listener: r.door(),
	}
	for _, p := range r.Peers {
		out.all = append(out.all, weighted{p.Name, string(p.URL), max(p.Weight, 1)})
	}
	slices.SortFunc(out.all, func(a, b weighted) int { return strings.Compare(a.name, b.name) })
	return out
}

func (r *Region) door() door { return door{regionListener, &r.Listener} }

// checkRegion checks the regions by themselves, except for the listener.
func (k *checker) checkRegion() {
	c, r := k.config, &k.config.Region
	if !c.hasRegion() {
		return
	}
	k.checkRegionNames()
	k.checkWeights()
	k.checkRegionSecret()
	k.between("region.interval", r.Interval, 100*time.Millisecond, 10*time.Second)
	for i, p := range r.Peers {
		path := strict.Item("region.peers", i) + ".url"
		switch secure, ok := p.secure(); {
		case !ok:
			k.Refuse(path, p.URL.String(), "https://HOST:PORT, or http://HOST:PORT in a private network, such as https://stint.us-east.example.com:7443", "")
		case !secure && r.Listener.TLSCert != "":
			k.Refuse(path, p.URL.String(), "https://HOST:PORT: region.listener has a certificate, with which this region calls the others", "")
		}
	}
	if most := longestName - runSuffix; len(r.Peers) > 0 && len(c.Server.Catalog.Node) > most {
		k.Refuse("server.catalog.node", c.Server.Catalog.Node, "at most "+strconv.Itoa(most)+" bytes, since other regions are told it with a suffix", "")
	}
	if r.Listener.Address != "" && len(r.Peers) == 0 {
		k.Refuse("region.listener.address", r.Listener.Address, "none, or region.peers: there is no other region to listen to", "")
	}
}

func (k *checker) checkRegionNames() {
	r := &k.config.Region
	names, first := []string{}, map[string]string{}
	check := func(path, setting, name string) {
		switch before, twice := first[name]; {
		case name == "":
			k.Add(path, "missing, want the name of the region", "")
			return
		case !rule.ValidName(name):
			k.Refuse(path, name, wantRegion, "")
		case twice:
			k.Add(path, strict.Quote(name)+" is already the name of "+before, "")
			return
		}
		names, first[name] = append(names, name), setting
	}
	check("region.name", "this region", r.Name)
	if n := len(r.Peers); n > maxPeers {
		k.Add("region.peers", "has "+strconv.Itoa(n)+" regions, want at most "+strconv.Itoa(maxPeers), "")
	}
	for i, p := range r.Peers[:min(len(r.Peers), maxPeers)] {
		path := strict.Item("region.peers", i)
		check(path+".name", path, p.Name)
	}
	if r.Central != "" && !slices.Contains(names, r.Central) {
		k.Refuse("region.central", r.Central, "the name of a region, one of "+strings.Join(names, ", "), k.Closest(r.Central, names))
	}
}

// checkWeights checks that all weights are 100 percent, if there are any.
func (k *checker) checkWeights() {
	r := &k.config.Region
	type weight struct {
		path  string
		value int
	}
	all := []weight{{"region.weight", r.Weight}}
	for i, p := range r.Peers {
		all = append(all, weight{strict.Item("region.peers", i) + ".weight", p.Weight})
	}
	if !slices.ContainsFunc(all, func(w weight) bool { return w.value != 0 }) {
		return
	}
	sum, sound := 0, true
	for _, w := range all {
		sum += w.value
		switch {
		case w.value == 0:
			k.Add(w.path, "missing, want a weight from 1 to 100: other regions have one", "")
		case w.value < 1 || w.value > wholePercent:
			k.Add(w.path, strconv.Itoa(w.value)+": want from 1 to 100 percent", "")
		default:
			continue
		}
		sound = false
	}
	if sound && sum != wholePercent {
		k.Add("region.weight", "the weights of all regions are "+strconv.Itoa(sum)+" together, want 100, or none for equal parts", "")
	}
}

func (k *checker) checkRegionSecret() {
	c, r := k.config, &k.config.Region
	before, path := len(k.Problems), "region.secret"
	read := len(c.named)
	text := k.readSecret(path, r.Secret, r.SecretFile)
	for i := range c.named[read:] {
		c.named[read+i].other = true
	}
	if r.SecretFile != "" {
		path += "_file"
	}
	switch {
	case len(k.Problems) > before: // it could not be read
	case text != "":
		c.credentials.regionSecrets = k.splitSecrets(path, text)
	case r.Listener.TLSClientCA == "" && len(r.Peers) > 0:
		k.Add(path, "missing, want secret or secret_file, the same in all regions, or region.listener.tls_client_ca: otherwise anyone could speak for a region", "")
	}
}

// splitSecrets returns the secrets of a text, one on each line.
func (k *checker) splitSecrets(path string, text identity.Secret) (all []identity.Secret) {
	lines := strings.Split(string(text), "\n")
	if n := len(lines); n > mostSecrets {
		k.Add(path, "has "+strconv.Itoa(n)+" lines, want one secret, or two while it is replaced, on a line each", "")
		return nil
	}
	for i, line := range lines {
		where, secret := "", identity.Secret(strings.TrimSpace(line))
		if len(lines) > 1 {
			where = "line " + strconv.Itoa(i+1) + " "
		}
		switch n := len(secret); {
		case n == 0:
			k.Add(path, where+"is empty, want a secret", "")
		case n < leastSecret:
			k.Add(path, where+"has "+strconv.Itoa(n)+" bytes, want at least "+strconv.Itoa(leastSecret), "")
		case slices.Contains(all, secret):
			k.Add(path, where+"has the same secret as line 1, want another, or one line", "")
		}
		all = append(all, secret)
	}
	return all
}

// admitsLike reports whether regions can prove who they are in the way of another configuration without a restart:
// secrets and certificates are replaced, but TLS is not turned on or off.
func (c *Config) admitsLike(o *Config) bool {
	a, b := &c.Region, &o.Region
	return len(a.Peers) > 0 && len(b.Peers) > 0 && (a.Listener.TLSCert == "") == (b.Listener.TLSCert == "")
}
