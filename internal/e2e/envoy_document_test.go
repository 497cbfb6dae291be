package e2e_test

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	quotav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rate_limit_quota/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/internal/door/field"
	"github.com/stintdev/stint/internal/test/testdoc"
	"github.com/stintdev/stint/internal/test/testredis"
)

// decode decodes YAML as Envoy does: strictly.
func decode(t *testing.T, text string, into proto.Message) {
	t.Helper()
	var tree any
	if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	data, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	if err := protojson.Unmarshal(data, into); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if v, ok := into.(interface{ ValidateAll() error }); ok {
		if err := v.ValidateAll(); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
	}
}

// opened returns the content of an Any, which must have this type.
func opened[M proto.Message](t *testing.T, a *anypb.Any, into M) M {
	t.Helper()
	if err := a.UnmarshalTo(into); err != nil {
		t.Fatal(err)
	}
	if v, ok := any(into).(interface{ ValidateAll() error }); ok {
		if err := v.ValidateAll(); err != nil {
			t.Fatal(err)
		}
	}
	return into
}

func TestEnvoyDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/envoy.md")
	if err != nil {
		t.Fatal(err)
	}
	var boot bootstrapv3.Bootstrap
	var quotas managerv3.HttpConnectionManager
	var files []descriptor.File
	for _, b := range blocks(t, "envoy.md", "yaml") {
		switch {
		case strings.HasPrefix(b, "static_resources:"):
			decode(t, b, &boot)
		case strings.HasPrefix(b, "rate_limits:"):
			decode(t, "name: x\ndomains: [\"*\"]\n"+b, new(routev3.VirtualHost))
		case strings.HasPrefix(b, "http_filters:"):
			decode(t, "stat_prefix: x\nroute_config: {}\n"+b, &quotas)
		case strings.HasPrefix(b, "name: envoy.filters.http.header_mutation"):
			var filter managerv3.HttpFilter
			decode(t, b, &filter)
			m := opened(t, filter.GetTypedConfig(), &mutationv3.HeaderMutation{}).GetMutations().GetRequestMutations()
			if len(m) != 1 || !strings.EqualFold(m[0].GetRemove(), field.Over) {
				t.Errorf("%v", m)
			}
		case strings.HasPrefix(b, "domain:"):
			files = append(files, descriptor.File{Name: "envoy.md", Data: []byte(b)})
		default:
			t.Errorf("what is this?\n%s", b)
		}
	}
	config, err := descriptor.Read(files, descriptor.Options{})
	if err != nil || len(files) != 2 {
		t.Fatalf("%d domains, %v", len(files), err)
	}

	// So are the documented buckets of its quotas.
	q := opened(t, quotas.GetHttpFilters()[0].GetTypedConfig(), &quotav3.RateLimitQuotaFilterConfig{})
	matcher := q.GetBucketMatchers().GetMatcherList().GetMatchers()[0]
	settings := opened(t, matcher.GetOnMatch().GetAction().GetTypedConfig(), &quotav3.RateLimitQuotaBucketSettings{})
	var bucket []descriptor.Entry
	for _, key := range slices.Sorted(maps.Keys(settings.GetBucketIdBuilder().GetBucketIdBuilder())) {
		value := settings.GetBucketIdBuilder().GetBucketIdBuilder()[key].GetStringValue()
		bucket = append(bucket, descriptor.Entry{Key: key, Value: cmp.Or(value, "alice")})
	}
	if config.Domain(q.GetDomain()).Find(bucket) == nil {
		t.Errorf("%v has no limit", bucket)
	}

	// Requests of the documented Envoy configuration are limited.
	filter := boot.GetStaticResources().GetListeners()[0].GetFilterChains()[0].GetFilters()[0]
	manager := opened(t, filter.GetTypedConfig(), &managerv3.HttpConnectionManager{})
	limits := opened(t, manager.GetHttpFilters()[0].GetTypedConfig(), &ratelimitv3.RateLimit{})
	found := map[string]bool{}
	for _, r := range manager.GetRouteConfig().GetVirtualHosts()[0].GetRoutes()[0].GetRoute().GetRateLimits() {
		var entries []descriptor.Entry
		for _, a := range r.GetActions() {
			switch {
			case a.GetRemoteAddress() != nil:
				entries = append(entries, descriptor.Entry{Key: "remote_address", Value: "192.0.2.1"})
			case a.GetGenericKey() != nil:
				entries = append(entries, descriptor.Entry{Key: a.GetGenericKey().GetDescriptorKey(), Value: a.GetGenericKey().GetDescriptorValue()})
			default:
				entries = append(entries, descriptor.Entry{Key: a.GetRequestHeaders().GetDescriptorKey(), Value: "alice"})
			}
		}
		l := config.Domain(limits.GetDomain()).Find(entries)
		if l == nil {
			t.Fatalf("%v has no limit", entries)
		}
		found[l.Path] = true
	}
	if !found["shop.remote_address"] || !found["shop.route_shop.user"] {
		t.Errorf("found %v", found)
	}

	for _, d := range differences {
		if !strings.Contains(string(text), "| "+d.key+" | "+d.reason+" |") {
			t.Errorf("the document does not tell of the difference %s: %s", d.key, d.reason)
		}
	}
	_, listed, _ := strings.Cut(string(text), "\n## Differences\n")
	listed, _, _ = strings.Cut(listed, "\n## ")
	if n := strings.Count(listed, "\n| ") - 1; n != len(differences) { // without the head
		t.Errorf("the document has %d differences, want %d", n, len(differences))
	}
	for _, field := range fieldsOf(reflect.TypeFor[descriptor.Domain]()) {
		if !strings.Contains(string(text), "`"+field+"`") {
			t.Errorf("the document does not tell of the field %s", field)
		}
	}

	// The documented requests have the documented responses.
	s := serveEnvoy(t, writeDomains(t, map[string]string{"shop": string(files[0].Data)}), "STINT_SERVER_ADMIN_TOKEN="+adminToken)
	caller := newClient(t, "127.0.0.1", s.api)
	s.same(t, "shop hits=3: route=shop,user=alice", "OK: OK 997")
	var commands []testdoc.Command
	for _, b := range testdoc.In(t, "docs/envoy.md", "sh") {
		commands = append(commands, b.Commands()...)
	}
	if len(commands) != 8 || len(blocks(t, "envoy.md", "json")) != 1 {
		t.Fatalf("the document has the commands %q", commands)
	}
	migrate(t, commands[:5], files[0].Data)
	ask := func(c testdoc.Command) string {
		text := strings.ReplaceAll(c.Text, "$STINT_TOKEN", adminToken)
		return command(t, "sh", "-c", strings.Replace(replace(t, text, "localhost:8080", s.api), "curl", "'"+tool(t, "curl")+"' -fsS", 1))
	}
	if err := testdoc.SameJSON(ask(commands[5]), blocks(t, "envoy.md", "json")[0], "reset_after"); err != nil {
		t.Error(err)
	}
	ask(commands[6])
	has(t, ask(commands[7]), `"overallCode":"OK"`)
	s.same(t, "shop: route=shop,user=alice", "OK: OK 999")
	if w := caller.do(t, http.MethodGet, "/v1/descriptors?domain=shop&entry=user=alice", ""); w.status != http.StatusNotFound {
		t.Errorf("got %d %s, want 404", w.status, w.body)
	}
}

// migrate follows the steps of the document: check, run beside it, compare, switch, look, and go back.
func migrate(t *testing.T, steps []testdoc.Command, domain []byte) {
	t.Helper()
	dir := writeDomains(t, map[string]string{"shop": strings.ReplaceAll(string(domain), "unit: hour", "unit: year")})
	theirs := startReference(t, dir)
	replacements := []string{
		"/data/ratelimit/config", dir, "localhost:8081", theirs.conn.Target(), "stint envoy", program.path + " envoy", "stint serve", program.path + " serve",
		"curl ", tool(t, "curl") + " -fsS ",
	}
	var address string
	for _, port := range []string{"9080", "9070", "9081"} {
		address = freeAddress(t)
		_, free, _ := strings.Cut(address, ":")
		replacements = append(replacements, port, free)
	}
	step := func(i int) string { return strings.NewReplacer(replacements...).Replace(steps[i].Text) }
	const alice = "shop: route=shop,user=alice"
	theirs.same(t, alice, "OK: OK 999")

	has(t, command(t, "sh", "-c", step(0)), "limits: 3, no problems")
	cmd := exec.Command("sh", "-c", "exec env "+step(1))
	cmd.Env = []string{
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + testredis.Start(t).Addr(), "RUNTIME_ROOT=" + filepath.Dir(dir), "RUNTIME_APPDIRECTORY=" + filepath.Base(dir),
		"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1", "USE_STATSD=false", "STINT_SERVER_ADMIN_ADDRESS=", "STINT_SERVER_DRAIN_DELAY=0s",
		"STINT_SERVER_STORE_BUDGET=30s",
	}
	ours := connect(t, "stint", run(t, cmd), address)
	has(t, command(t, "sh", "-c", step(2)), "limits: 3, ", "differences: 0")
	ours.same(t, alice, "OK: OK 999") // counters start from zero
	has(t, command(t, "sh", "-c", step(3)), "shop.route_shop.user: unit=YEAR requests_per_unit=1000")
	has(t, command(t, "sh", "-c", step(4)), "ratelimit.service.rate_limit.shop.route_shop.user.total_hits: ")
	theirs.same(t, alice, "OK: OK 998") // and there they go on
}

// fieldsOf returns the names of the fields, also of those within.
func fieldsOf(r reflect.Type) (names []string) {
	for i := range r.NumField() {
		f := r.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
		within := f.Type
		for within.Kind() == reflect.Slice || within.Kind() == reflect.Pointer {
			within = within.Elem()
		}
		if within.Kind() != reflect.Struct || within == r {
			continue
		}
		for _, inner := range fieldsOf(within) {
			if name == "rate_limit" {
				inner = name + "." + inner
			}
			names = append(names, inner)
		}
	}
	return names
}
