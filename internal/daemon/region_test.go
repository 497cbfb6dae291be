package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stintdev/stint/internal/test/testserver"
	"github.com/stintdev/stint/rule"
)

// TestRegions checks what the wiring gets to know of regions, whatever the order of the file.
func TestRegions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"[server]\n":              "none",
		"[region]\nname = \"eu\"": "eu central= [{eu  1}] secret= every 1s at ",
		fmt.Sprintf(ofEU, "")[1:]: "eu central= [{asia https://asia:7443 1} {eu  1} {us http://us:7443 1}] secret=0123456789abcdef every 1s at ",
		threeWeighted(40, 50, 10): "eu central=us [{asia https://asia:7443 10} {eu  40} {us http://us:7443 50}] secret=0123456789abcdef every 100ms at :7443",
		threeWeighted(98, 1, 1):   "eu central=us [{asia https://asia:7443 1} {eu  98} {us http://us:7443 1}] secret=0123456789abcdef every 100ms at :7443",
		strings.Replace(threeWeighted(98, 1, 1), "abcdef", "abcdef\\nfedcba9876543210", 1): "eu central=us [{asia https://asia:7443 1} {eu  98} {us http://us:7443 1}] secret=0123456789abcdef,fedcba9876543210 every 100ms at :7443",
		"[server.record]\nregion=\"here\"\n[region]\nname = \"eu\"":                        "eu central= [{eu  1}] secret= every 1s at ",
	} {
		c := load(t, text)
		if got := c.DescribeRegions(); got != want {
			t.Errorf("%s\ngot:  %s\nwant: %s", text, got, want)
		}
		region := c.Region.Name
		if strings.Contains(text, "here") {
			region = "here"
		}
		if c.Server.Record.Region != region {
			t.Errorf("%s\nthe record is of %q", text, c.Server.Record.Region)
		}
	}
	c := load(t, "", "STINT_REGION_NAME=eu", "STINT_REGION_INTERVAL=2s")
	if got := c.DescribeRegions(); got != "eu central= [{eu  1}] secret= every 2s at " || c.Server.Record.Region != "eu" {
		t.Errorf("of the environment: %s, %s", got, c.Server.Record.Region)
	}
}

// ofEU is one of three regions, and the place for its settings.
const ofEU = `
[region]
name = "eu"
secret = "0123456789abcdef"
%s
[[region.peers]]
name = "us"
url = "http://us:7443"
[[region.peers]]
name = "asia"
url = "https://asia:7443"
`

func threeWeighted(eu, us, asia int) string {
	text := fmt.Sprintf(ofEU, fmt.Sprintf("weight = %d\ncentral = \"us\"\ninterval = \"100ms\"\nlistener.address = \":7443\"", eu))
	text = strings.Replace(text, "http://us:7443\"", fmt.Sprintf("http://us:7443\"\nweight = %d", us), 1)
	return strings.Replace(text[1:], "https://asia:7443\"", fmt.Sprintf("https://asia:7443\"\nweight = %d", asia), 1)
}

// TestRegionProblems checks everything that can be wrong with regions, and with rules in them.
func TestRegionProblems(t *testing.T) {
	t.Parallel()
	of := func(settings string) string { return fmt.Sprintf(ofEU, settings)[1:] }
	peers := func(n int) (text string) {
		for i := range n {
			text += fmt.Sprintf("[[region.peers]]\nname = \"r%d\"\nurl = \"http://r%d:1\"\n", i, i)
		}
		return text
	}
	file := func(secret string) string {
		return "[region]\nname = \"eu\"\nsecret_file = \"" + write(t, "secret", secret) + "\"\n" + peers(1)
	}
	gossip := func(field string) string {
		return "[[rules]]\nname = \"a\"\n" + field + "\nlimits = [{ name = \"l\", limit = \"2/1s\" }]\n"
	}
	wantURL := ": want https://HOST:PORT, or http://HOST:PORT in a private network, such as https://stint.us-east.example.com:7443"
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	testserver.WritePair(t, cert, key, "eu")
	certified := func(listener, more string) string {
		return fmt.Sprintf("[region]\nname = \"eu\"\n%slistener = { address = \":7443\", tls_cert = %q, tls_key = %q%s }\n", more, cert, key, listener)
	}
	for name, c := range map[string]struct {
		text    string
		environ []string
		want    string
	}{
		"three":        {text: of("central = \"asia\"")},
		"alone":        {text: "[region]\nname = \"eu-west\""},
		"most":         {text: "[region]\nname = \"a\"\nsecret = \"0123456789abcdef\"\n" + peers(15)},
		"too many":     {text: "[region]\nname = \"a\"\nsecret = \"0123456789abcdef\"\n" + peers(16), want: "stint.toml:4:1: region.peers: has 16 regions, want at most 15"},
		"unknown":      {text: "[region]\nname = \"a\"\nweigth = 5", want: `stint.toml:3:1: region.weigth: unknown field; did you mean "weight"?`},
		"unknown peer": {text: of("") + "wight = 5", want: `region.peers[1].wight: unknown field; did you mean "weight"?`},

		"no name":        {text: "[region]\ninterval = \"1s\"", want: "stint.toml:1:1: region.name: missing, want the name of the region"},
		"empty name":     {text: "[region]\nname = \"\"", want: "stint.toml:2:8: region.name: missing, want the name of the region"},
		"bad name":       {text: "[region]\nname = \"eu west\"", want: `stint.toml:2:8: region.name: "eu west": want letters and digits, with . _ or - between them, at most 64 bytes`},
		"long name":      {text: "[region]\nname = \"" + strings.Repeat("x", 65) + "\"", want: `: want letters and digits, with . _ or - between them, at most 64 bytes`},
		"no peer's name": {text: of("") + "[[region.peers]]\nurl = \"http://x:1\"", want: "stint.toml:11:1: region.peers[2].name: missing, want the name of the region"},
		"bad peer":       {text: of("") + "[[region.peers]]\nname = \"-\"\nurl = \"http://x:1\"", want: `stint.toml:12:8: region.peers[2].name: "-": want letters and digits`},
		"itself":         {text: of("") + "[[region.peers]]\nname = \"eu\"\nurl = \"http://x:1\"", want: `stint.toml:12:8: region.peers[2].name: "eu" is already the name of this region`},
		"twice":          {text: of("") + "[[region.peers]]\nname = \"us\"\nurl = \"http://x:1\"", want: `stint.toml:12:8: region.peers[2].name: "us" is already the name of region.peers[0]`},
		"variable":       {environ: []string{"STINT_REGION_NAME=a b"}, want: `STINT_REGION_NAME: "a b": want letters and digits`},
		"peers variable": {environ: []string{"STINT_REGION_PEERS=us"}, want: `STINT_REGION_PEERS: unknown variable`},

		"weights":        {text: threeWeighted(50, 25, 25)},
		"too heavy":      {text: threeWeighted(50, 50, 10), want: "stint.toml:4:10: region.weight: the weights of all regions are 110 together, want 100, or none for equal parts"},
		"too light":      {text: threeWeighted(50, 25, 24), want: "region.weight: the weights of all regions are 99 together, want 100, or none for equal parts"},
		"some weights":   {text: of("weight = 100"), want: "stint.toml:5:1: region.peers[0].weight: missing, want a weight from 1 to 100: other regions have one\nstint.toml:8:1: region.peers[1].weight: missing, want a weight from 1 to 100: other regions have one"},
		"no own weight":  {text: of("") + "weight = 100", want: "stint.toml:1:1: region.weight: missing, want a weight from 1 to 100: other regions have one\nstint.toml:5:1: region.peers[0].weight: missing"},
		"negative":       {text: threeWeighted(50, 60, -10), want: "region.peers[1].weight: -10: want from 1 to 100 percent"},
		"above all":      {text: threeWeighted(101, 1, 1), want: "region.weight: 101: want from 1 to 100 percent"},
		"alone, in part": {text: "[region]\nname = \"eu\"\nweight = 50", want: "stint.toml:3:10: region.weight: the weights of all regions are 50 together, want 100, or none for equal parts"},
		"alone, all":     {text: "[region]\nname = \"eu\"\nweight = 100\ncentral = \"eu\""},

		"central":     {text: of("central = \"asai\""), want: `stint.toml:4:11: region.central: "asai": want the name of a region, one of eu, us, asia; did you mean "asia"?`},
		"interval":    {text: of("interval = \"99ms\""), want: `stint.toml:4:12: region.interval: "99ms": want from 100ms to 10s`},
		"no interval": {text: of("interval = \"0\""), want: `region.interval: "0": want from 100ms to 10s`},
		"long":        {text: of("interval = \"11s\""), want: `region.interval: "11s": want from 100ms to 10s`},

		"no url":    {text: of("") + "[[region.peers]]\nname = \"x\"", want: `stint.toml:11:1: region.peers[2].url: ""` + wantURL},
		"no scheme": {text: of("") + "[[region.peers]]\nname = \"x\"\nurl = \"us:7443\"", want: `stint.toml:13:7: region.peers[2].url: "us:7443"` + wantURL},
		"scheme":    {text: of("") + "[[region.peers]]\nname = \"x\"\nurl = \"grpc://us:7443\"", want: `"grpc://us:7443"` + wantURL},
		"no host":   {text: of("") + "[[region.peers]]\nname = \"x\"\nurl = \"https://:7443\"", want: `"https://:7443"` + wantURL},
		"no port":   {text: of("") + "[[region.peers]]\nname = \"x\"\nurl = \"https://us\"", want: `"https://us"` + wantURL},
		"slashes":   {text: of("") + "[[region.peers]]\nname = \"x\"\nurl = \"https://us:1//\"", want: `"https://us:1//"` + wantURL},
		"high port": {text: of("") + "[[region.peers]]\nname = \"x\"\nurl = \"https://us:65536\"", want: `"https://us:65536"` + wantURL},
		"port 0":    {text: of("") + "[[region.peers]]\nname = \"x\"\nurl = \"https://us:0\"", want: `"https://us:0"` + wantURL},
		"slash":     {text: of("") + "[[region.peers]]\nname = \"x\"\nurl = \"https://us:1/\""},
		"path":      {text: of("") + "[[region.peers]]\nname = \"x\"\nurl = \"https://us:1/x\"", want: `"https://us:1/x"` + wantURL},
		"password":  {text: of("") + "[[region.peers]]\nname = \"x\"\nurl = \"https://me:hunter2@us:1\"", want: `"https://[redacted]@us:1"` + wantURL},

		"no secret":      {text: "[region]\nname = \"eu\"\n" + peers(1), want: "stint.toml:1:1: region.secret: missing, want secret or secret_file, the same in all regions, or region.listener.tls_client_ca: otherwise anyone could speak for a region"},
		"short secret":   {text: "[region]\nname = \"eu\"\nsecret = \"hunter2........\"\n" + peers(1), want: "stint.toml:3:10: region.secret: has 15 bytes, want at least 16"},
		"secret file":    {text: file("0123456789abcdef\n")},
		"short file":     {text: file("hunter2\n"), want: "stint.toml:3:15: region.secret_file: has 7 bytes, want at least 16"},
		"no file":        {text: "[region]\nname = \"eu\"\nsecret_file = \"/nowhere\"\n" + peers(1), want: `stint.toml:3:15: region.secret_file: "/nowhere": want a file that can be read: no such file`},
		"two secrets":    {text: "[region]\nname = \"eu\"\nsecret = \"\"\"\n  0123456789abcdef\nfedcba9876543210 \"\"\"\n" + peers(1)},
		"two in a file":  {text: file("0123456789abcdef\r\nfedcba9876543210\r\n")},
		"second short":   {text: file("0123456789abcdef\nhunter2\n"), want: "stint.toml:3:15: region.secret_file: line 2 has 7 bytes, want at least 16"},
		"both short":     {text: file("hunter2\nhunter2\n"), want: "stint.toml:3:15: region.secret_file: line 1 has 7 bytes, want at least 16\nstint.toml:3:15: region.secret_file: line 2 has 7 bytes, want at least 16"},
		"empty line":     {text: file(" \n0123456789abcdef"), want: "stint.toml:3:15: region.secret_file: line 1 is empty, want a secret"},
		"only spaces":    {text: file("                 "), want: "stint.toml:3:15: region.secret_file: is empty, want a secret"},
		"twice the same": {text: file("0123456789abcdef\n0123456789abcdef"), want: "stint.toml:3:15: region.secret_file: line 2 has the same secret as line 1, want another, or one line"},
		"three secrets":  {text: file("0123456789abcdef\n\nfedcba9876543210"), want: "stint.toml:3:15: region.secret_file: has 3 lines, want one secret, or two while it is replaced, on a line each"},
		"both secrets":   {text: of("secret_file = \"x\""), want: `region.secret_file: is set together with secret, want one of them`},
		"certificates":   {text: certified(", tls_client_ca = \""+cert+"\"", "") + strings.Replace(peers(1), "http:", "https:", 1)},
		"TLS":            {text: certified("", "secret = \"0123456789abcdef\"\n") + strings.Replace(peers(1), "http:", "https:", 1)},
		"plain peer":     {text: certified("", "secret = \"0123456789abcdef\"\n") + peers(1), want: `stint.toml:7:7: region.peers[0].url: "http://r0:1": want https://HOST:PORT: region.listener has a certificate, with which this region calls the others`},
		"plain peers":    {text: certified(", tls_client_ca = \""+cert+"\"", "") + peers(2), want: "stint.toml:6:7: region.peers[0].url: \"http://r0:1\": want https://HOST:PORT\nstint.toml:9:7: region.peers[1].url: \"http://r1:1\": want https://HOST:PORT"},
		"long node":      {text: of("") + "[server.catalog]\nnode = \"" + strings.Repeat("n", 249) + "\"", want: `: want at most 248 bytes, since other regions are told it with a suffix`},
		"longest node":   {text: of("") + "[server.catalog]\nnode = \"" + strings.Repeat("n", 248) + "\""},

		"listener":       {text: of("listener.address = \":7443\"")},
		"no peers":       {text: "[region]\nname = \"eu\"\n[region.listener]\naddress = \":7443\"", want: `stint.toml:4:11: region.listener.address: ":7443": want none, or region.peers: there is no other region to listen to`},
		"address":        {text: of("listener.address = \"7443\""), want: `region.listener.address: "7443": want host:port`},
		"socket":         {text: of("listener.address = \"unix:/x\""), want: `region.listener.address: "unix:/x": want host:port`},
		"same address":   {text: of("listener.address = \"127.0.0.1:9090\""), want: `stint.toml:4:20: region.listener.address: "127.0.0.1:9090": want a different address: server.admin uses 127.0.0.1:9090`},
		"no key":         {text: of("listener = { address = \":1\", tls_cert = \"x\" }"), want: "region.listener.tls_cert: needs tls_key, the file with its key\nregion.peers[0].url: \"http://us:7443\": want https://HOST:PORT: region.listener has a certificate"},
		"proxy protocol": {text: of("listener.proxy_protocol = true") + "[identity]\ntrusted_proxies = [\"10.0.0.0/8\"]", want: "region.listener.proxy_protocol: is not supported here"},

		"gossip nowhere":    {text: gossip("regions = \"gossip\""), want: `stint.toml:3:11: rules[0].regions: "gossip": this is no region: add [region] with a name and peers, or remove regions`},
		"central nowhere":   {text: gossip("regions = \"central\""), want: `rules[0].regions: "central": this is no region: add [region]`},
		"quota nowhere":     {text: gossip("regions = \"quota\""), want: `rules[0].regions: "quota": this is no region: add [region]`},
		"central of no one": {text: gossip("regions = \"central\"") + of(""), want: `stint.toml:3:11: rules[0].regions: "central": no region has the counters: set region.central to the name of one`},
		"central rule":      {text: gossip("regions = \"central\"") + of("central = \"eu\"")},
		"small quota":       {text: gossip("regions = \"quota\"") + of(""), want: `stint.toml:4:33: rules[0].limits[0].limit: "2/1s": want at least 3, one unit for each region: the rule gives each a part (quota)`},
		"small tier": {
			text: strings.ReplaceAll(gossip("regions = \"quota\""), "2/1s", "9/1s") + "[[tiers]]\nname = \"t\"\nlimits = { l = \"2/1s\" }\n" + of(""),
			want: `stint.toml:7:16: tiers[0].limits.l: the rule "a" gives each region a part (quota): want at least 3, one unit for each`,
		},
		"costly": {
			text: strings.ReplaceAll(gossip("cost = 5\nregions = \"quota\""), "2/1s", "40/1s") + threeWeighted(50, 40, 10),
			want: `stint.toml:3:8: rules[0].cost: 5 units can never pass the limit "l" in the region "asia", whose part of 40/1s (quota) is 4/1s`,
		},
		"costly header": {
			text: strings.ReplaceAll(gossip("cost = { header = \"X-Cost\", max = 5 }\nregions = \"quota\""), "2/1s", "14/1s") + of(""),
			want: `stint.toml:3:35: rules[0].cost.max: 5 units can never pass the limit "l" in the region "us", whose part of 14/1s (quota) is 4/1s`,
		},
		"as costly as the parts": {text: strings.ReplaceAll(gossip("cost = 5\nregions = \"quota\""), "2/1s", "15/1s") + of("")},
		"costly tier": {
			text: strings.ReplaceAll(gossip("cost = 5\nregions = \"quota\""), "2/1s", "99/1s") + "[[tiers]]\nname = \"t\"\nlimits = { l = \"12/1s\" }\n" + of(""),
			want: `stint.toml:8:16: tiers[0].limits.l: the rule "a" costs 5 units, which can never pass in the region "asia", whose part of 12/1s (quota) is 4/1s`,
		},
		"gossip": {text: gossip("regions = \"gossip\"\ncredit = 1\non_credit = \"deny\"") + of("")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := problems(t, c.text, c.environ...)
			lines, want := strings.Split(got, "\n"), strings.Split(c.want, "\n")
			ok := len(lines) == len(want) && (c.want == "") == (got == "")
			for i := range want {
				ok = ok && strings.Contains(lines[i], want[i])
			}
			if !ok || strings.Contains(got, "hunter2") {
				t.Errorf("got:\n%s\nwant:\n%s", got, c.want)
			}
		})
	}
}

// TestPresets loads the files of deploy/config, with what they name in another directory.
func TestPresets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testserver.WritePair(t, filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), "region")
	put(t, filepath.Join(dir, "region.secret"), "0123456789abcdef")
	put(t, filepath.Join(dir, "http.token"), "0123456789abcdef")
	const secret = " secret=0123456789abcdef every 1s at :7443"
	want := map[string]string{
		"regions-central.toml": "us-east central=eu-west [{ap-south https://stint.ap-south.example.com:7443 1} {eu-west https://stint.eu-west.example.com:7443 1} {us-east  1}]" + secret,
		"regions-gossip.toml":  "eu-west central= [{ap-south https://stint.ap-south.example.com:7443 20} {eu-west  40} {us-east https://stint.us-east.example.com:7443 40}]" + secret,
	}
	files, err := filepath.Glob("../../deploy/config/regions-*.toml")
	if err != nil || len(files) != len(want) {
		t.Fatalf("%v, %v", files, err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		c := load(t, strings.ReplaceAll(string(text), "/etc/stint", dir))
		if got := c.DescribeRegions(); got != want[filepath.Base(path)] {
			t.Errorf("%s: %s", path, got)
		}
		if !slices.ContainsFunc(c.Rules, func(r rule.Rule) bool { return r.Regions != "" }) {
			t.Errorf("%s has no rule that regions share", path)
		}
	}
}

// TestRegionRestart changes everything of the regions: nothing of it is used before a restart, except for secrets, as
// long as there are other regions and TLS is neither turned on nor off.
func TestRegionRestart(t *testing.T) {
	t.Parallel()
	path := write(t, "stint.toml", version("one")+threeWeighted(40, 50, 10))
	r := newRig(t, path)
	put(t, path, version("two")+strings.Replace(threeWeighted(40, 50, 10), `secret = "0123456789abcdef"`, fmt.Sprintf("secret_file = %q", write(t, "secret", "fedcba9876543210\n0123456789abcdef")), 1))
	do(t, r.Reload(t.Context()))
	if s := r.Status(); s.NeedsRestart != nil {
		t.Errorf("%+v", s)
	}
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	testserver.WritePair(t, cert, key, "eu")
	put(t, path, version("three")+fmt.Sprintf("[region]\nname = \"eu\"\nweight = 100\nlistener = { tls_cert = %q, tls_key = %q, tls_client_ca = %[1]q }", cert, key))
	do(t, r.Reload(t.Context()))
	want := []string{
		"region.weight", "region.central", "region.secret", "region.interval", "region.listener.address",
		"region.listener.tls_cert", "region.listener.tls_key", "region.listener.tls_client_ca", "region.peers",
	}
	if s := r.Status(); !slices.Equal(s.NeedsRestart, want) || r.rules() != "three" {
		t.Errorf("%+v", s)
	}
}
