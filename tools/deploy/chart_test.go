package deploy_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/release"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write deploy/kubernetes/base anew")

const chartDir = root + "/deploy/helm/stint"

// render returns what the chart makes of values.
func render(t *testing.T, values string) (string, error) {
	t.Helper()
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	v, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	return renderChart(c, v)
}

func renderChart(c *chart.Chart, v chartutil.Values) (string, error) {
	r, err := install(c, v)
	if err != nil {
		return "", err
	}
	return r.Manifest, nil
}

func install(c *chart.Chart, v chartutil.Values) (*release.Release, error) {
	install := action.NewInstall(&action.Configuration{Log: func(string, ...any) {}})
	install.DryRun, install.ClientOnly, install.Replace = true, true, true
	install.ReleaseName, install.Namespace = "stint", "limits"
	install.KubeVersion = &chartutil.KubeVersion{Version: "v1.34.0", Major: "1", Minor: "34"}
	return install.Run(c, v)
}

// objects are the objects of a manifest by kind and name, read strictly as Kubernetes reads them.
func objects(t *testing.T, manifest string) map[string]any {
	t.Helper()
	kinds := map[string]func() any{
		"apps/v1 Deployment":                      func() any { return new(appsv1.Deployment) },
		"v1 Service":                              func() any { return new(corev1.Service) },
		"v1 ConfigMap":                            func() any { return new(corev1.ConfigMap) },
		"v1 ServiceAccount":                       func() any { return new(corev1.ServiceAccount) },
		"autoscaling/v2 HorizontalPodAutoscaler":  func() any { return new(autoscalingv2.HorizontalPodAutoscaler) },
		"policy/v1 PodDisruptionBudget":           func() any { return new(policyv1.PodDisruptionBudget) },
		"networking.k8s.io/v1 Ingress":            func() any { return new(networkingv1.Ingress) },
		"networking.k8s.io/v1 NetworkPolicy":      func() any { return new(networkingv1.NetworkPolicy) },
		"monitoring.coreos.com/v1 ServiceMonitor": func() any { return new(serviceMonitor) },
	}
	out := map[string]any{}
	for text := range strings.SplitSeq("\n"+manifest, "\n---") {
		text += "\n" // which ends the last value
		var head struct {
			APIVersion string `json:"apiVersion"`
			Kind       string
			Metadata   struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(text), &head); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if head.Kind == "" {
			continue // comments alone
		}
		empty := kinds[head.APIVersion+" "+head.Kind]
		if empty == nil {
			t.Fatalf("what is a %s %s?", head.APIVersion, head.Kind)
		}
		o := empty()
		if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		name := head.Kind + " " + head.Metadata.Name
		if out[name] != nil {
			t.Errorf("%s is there twice", name)
		}
		out[name] = o
	}
	return out
}

// serviceMonitor is the part of the operator's type that the chart uses.
type serviceMonitor struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		Endpoints []struct {
			Port      string `json:"port"`
			Path      string `json:"path"`
			Interval  string `json:"interval"`
			Scheme    string `json:"scheme"`
			TLSConfig *struct {
				CA struct {
					Secret struct {
						Name string `json:"name"`
						Key  string `json:"key"`
					} `json:"secret"`
				} `json:"ca"`
				ServerName string `json:"serverName"`
			} `json:"tlsConfig"`
		} `json:"endpoints"`
	} `json:"spec"`
}

// variables are those of the container, with the names of secrets in place of their values.
func variables(d *appsv1.Deployment) map[string]string {
	out := map[string]string{}
	for _, v := range d.Spec.Template.Spec.Containers[0].Env {
		out[v.Name] = v.Value
		if v.ValueFrom != nil && v.ValueFrom.SecretKeyRef != nil {
			out[v.Name] = v.ValueFrom.SecretKeyRef.Name + "/" + v.ValueFrom.SecretKeyRef.Key
		}
	}
	return out
}

const redis = "counters: { url: redis://redis }\n"

// TestChart renders the chart with values that people have.
func TestChart(t *testing.T) {
	base := []string{"ConfigMap stint", "Deployment stint", "Service stint", "Service stint-admin", "ServiceAccount stint"}
	for name, c := range map[string]struct {
		values string
		kinds  []string // beside base
		check  func(t *testing.T, all map[string]any, d *appsv1.Deployment)
	}{
		"nothing": {"", nil, func(t *testing.T, _ map[string]any, d *appsv1.Deployment) {
			if image := d.Spec.Template.Spec.Containers[0].Image; image != "stint:"+version(t) {
				t.Errorf("it runs %s, and the release is %s", image, version(t))
			}
			if *d.Spec.Replicas != 1 {
				t.Errorf("%d pods count by themselves", *d.Spec.Replicas)
			}
		}},
		"several pods": {redis + "replicas: 3", []string{"PodDisruptionBudget stint"}, func(t *testing.T, _ map[string]any, d *appsv1.Deployment) {
			if v := variables(d); v["STINT_SERVER_COUNTERS"] != "redis://redis" || *d.Spec.Replicas != 3 {
				t.Errorf("%v", v)
			}
		}},
		"several pods, without a budget": {redis + "replicas: 3\npodDisruptionBudget: { enabled: false }", nil, nil},
		"scaled": {redis + "autoscaling: { enabled: true, maxReplicas: 5 }", []string{"HorizontalPodAutoscaler stint", "PodDisruptionBudget stint"}, func(t *testing.T, all map[string]any, d *appsv1.Deployment) {
			if d.Spec.Replicas != nil {
				t.Error("the deployment has a number of pods of its own, which each upgrade would set again")
			}
			if h := all["HorizontalPodAutoscaler stint"].(*autoscalingv2.HorizontalPodAutoscaler); h.Spec.MaxReplicas != 5 || *h.Spec.MinReplicas != 2 {
				t.Errorf("%+v", h.Spec)
			}
		}},
		"URLs of secrets": {"rules: ''\ncounters: { secret: { name: stint-redis } }\ndatabase: { secret: { name: stint-database, key: uri } }", nil, func(t *testing.T, _ map[string]any, d *appsv1.Deployment) {
			if v := variables(d); v["STINT_SERVER_COUNTERS"] != "stint-redis/url" || v["STINT_SERVER_DATABASE"] != "stint-database/uri" {
				t.Errorf("%v", v)
			}
		}},
		"servers of the same release, with passwords": {`
rules: ""
counters: { url: "redis://:$(PASSWORD)@{{ .Release.Name }}-redis-master:6379", password: { name: redis, key: redis-password } }
database: { url: "postgres://stint:$(PASSWORD)@{{ .Release.Name }}-postgresql/stint", password: { name: postgresql } }
`, nil, func(t *testing.T, _ map[string]any, d *appsv1.Deployment) {
			v := variables(d)
			if v["STINT_SERVER_COUNTERS"] != "redis://:$(COUNTERS_PASSWORD)@stint-redis-master:6379" || v["COUNTERS_PASSWORD"] != "redis/redis-password" ||
				v["STINT_SERVER_DATABASE"] != "postgres://stint:$(DATABASE_PASSWORD)@stint-postgresql/stint" || v["DATABASE_PASSWORD"] != "postgresql/password" {
				t.Errorf("%v", v)
			}
			// Kubernetes replaces $(NAME) by variables that come before.
			var names []string
			for _, e := range d.Spec.Template.Spec.Containers[0].Env {
				names = append(names, e.Name)
			}
			if slices.Index(names, "COUNTERS_PASSWORD") > slices.Index(names, "STINT_SERVER_COUNTERS") || slices.Index(names, "DATABASE_PASSWORD") > slices.Index(names, "STINT_SERVER_DATABASE") {
				t.Errorf("%v", names)
			}
		}},
		"every listener, with TLS": {`
http: { tlsSecret: http-tls, tokenSecret: { name: http-token } }
gateway: { enabled: true, tlsSecret: gateway-tls }
grpc: { enabled: true, tlsSecret: grpc-tls }
admin: { tlsSecret: admin-tls, tokenSecret: { name: admin-token, key: t } }
serviceMonitor: { enabled: true, labels: { release: prometheus } }
`, []string{"ServiceMonitor stint"}, func(t *testing.T, all map[string]any, d *appsv1.Deployment) {
			v := variables(d)
			if v["STINT_SERVER_ADMIN_INSECURE"] != "" || v["STINT_SERVER_GRPC_TLS_CERT"] != "/etc/stint/tls-grpc/tls.crt" || v["STINT_SERVER_ADMIN_TOKEN_FILE"] != "/etc/stint/admin-token/t" {
				t.Errorf("%v", v)
			}
			if d.Spec.Template.Spec.Containers[0].ReadinessProbe.HTTPGet.Scheme != "HTTPS" {
				t.Error("the probe speaks HTTP to a listener with TLS")
			}
			m := all["ServiceMonitor stint"].(*serviceMonitor)
			if e := m.Spec.Endpoints[0]; e.Scheme != "https" || e.TLSConfig.ServerName != "stint-admin.limits.svc" || m.Metadata.Labels["release"] != "prometheus" {
				t.Errorf("%+v", m)
			}
		}},
		"metrics, on a private network": {"serviceMonitor: { enabled: true }", []string{"ServiceMonitor stint"}, func(t *testing.T, all map[string]any, d *appsv1.Deployment) {
			if variables(d)["STINT_SERVER_ADMIN_INSECURE"] != "true" {
				t.Error("Stint would refuse to listen")
			}
			m, s := all["ServiceMonitor stint"].(*serviceMonitor), all["Service stint-admin"].(*corev1.Service)
			for k, want := range m.Spec.Selector.MatchLabels {
				if s.Labels[k] != want {
					t.Errorf("the monitor looks for %s=%s, and the service has %q", k, want, s.Labels[k])
				}
			}
			if m.Spec.Endpoints[0].Scheme != "" || m.Spec.Endpoints[0].Port != s.Spec.Ports[0].Name {
				t.Errorf("%+v", m.Spec.Endpoints)
			}
		}},
		"without the admin API": {"admin: { enabled: false }", []string{"-Service stint-admin"}, func(t *testing.T, _ map[string]any, d *appsv1.Deployment) {
			if v := variables(d); v["STINT_SERVER_ADMIN_ADDRESS"] != "" || len(d.Spec.Template.Spec.Containers[0].Ports) != 1 {
				t.Errorf("%v", v)
			}
		}},
		"for Envoy": {redis + "grpc: { enabled: true, envoy: { shop.yaml: \"domain: shop\\ndescriptors:\\n- { key: remote_address, rate_limit: { unit: second, requests_per_unit: 20 } }\\n\" } }", []string{"ConfigMap stint-envoy"}, func(t *testing.T, all map[string]any, d *appsv1.Deployment) {
			if v := variables(d); v["STINT_ENVOY_CONFIG"] != "/etc/stint/envoy" || v["STINT_SERVER_GRPC_ADDRESS"] != ":8081" {
				t.Errorf("%v", v)
			}
			if text := all["ConfigMap stint-envoy"].(*corev1.ConfigMap).Data["shop.yaml"]; !strings.HasPrefix(text, "domain: shop\n") {
				t.Errorf("%q", text)
			}
		}},
		"a gateway for a host": {`
gateway: { enabled: true }
trustedProxies: [10.0.0.0/8, 192.0.2.1]
ingress: { enabled: true, className: nginx, hosts: [api.example.com], tls: [{ secretName: api, hosts: [api.example.com] }] }
`, []string{"Ingress stint"}, func(t *testing.T, all map[string]any, d *appsv1.Deployment) {
			i, s := all["Ingress stint"].(*networkingv1.Ingress), all["Service stint"].(*corev1.Service)
			port := i.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Port.Name
			if !slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == port }) {
				t.Errorf("the service has no port %s", port)
			}
			if v := variables(d); v["STINT_IDENTITY_TRUSTED_PROXIES"] != "10.0.0.0/8,192.0.2.1" {
				t.Errorf("%v", v)
			}
		}},
		"a closed network": {redis + `
networkPolicy:
  enabled: true
  from: [{ namespaceSelector: { matchLabels: { kubernetes.io/metadata.name: shop } } }]
  egress: [{ ports: [{ port: 6379 }] }]
`, []string{"NetworkPolicy stint"}, func(t *testing.T, all map[string]any, _ *appsv1.Deployment) {
			p := all["NetworkPolicy stint"].(*networkingv1.NetworkPolicy)
			if len(p.Spec.Ingress) != 2 || p.Spec.Ingress[0].From[0].NamespaceSelector == nil || p.Spec.Ingress[1].From[0].PodSelector == nil ||
				!slices.Equal(p.Spec.PolicyTypes, []networkingv1.PolicyType{"Ingress", "Egress"}) {
				t.Errorf("%+v", p.Spec)
			}
		}},
		"whatever else pods have": {`
image: { repository: registry.example.com/stint, tag: 0.1.1, pullSecrets: [{ name: registry }] }
env: [{ name: STINT_SERVER_LOG_LEVEL, value: debug }]
files: { more.txt: "a\nb\n" }
podAnnotations: { a: b }
podLabels: { c: d }
nodeSelector: { disk: ssd }
tolerations: [{ operator: Exists }]
affinity: { nodeAffinity: {} }
priorityClassName: high
serviceAccount: { annotations: { e: f } }
service: { type: LoadBalancer, annotations: { g: h } }
resources: {}
`, nil, func(t *testing.T, all map[string]any, d *appsv1.Deployment) {
			pod := d.Spec.Template
			if pod.Spec.Containers[0].Image != "registry.example.com/stint:0.1.1" || pod.Annotations["a"] != "b" || pod.Labels["c"] != "d" || pod.Spec.Affinity.PodAntiAffinity != nil {
				t.Errorf("%+v", pod)
			}
			if s := all["Service stint-admin"].(*corev1.Service); s.Spec.Type != "" {
				t.Error("the admin API is on the load balancer")
			}
			if text := all["ConfigMap stint"].(*corev1.ConfigMap).Data["more.txt"]; text != "a\nb\n" {
				t.Errorf("%q", text)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := render(t, c.values)
			if err != nil {
				t.Fatal(err)
			}
			all := objects(t, text)
			want := slices.Clone(base)
			for _, k := range c.kinds {
				if gone, ok := strings.CutPrefix(k, "-"); ok {
					want = slices.DeleteFunc(want, func(s string) bool { return s == gone })
				} else {
					want = append(want, k)
				}
			}
			slices.Sort(want)
			if got := slices.Sorted(maps.Keys(all)); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
			d := all["Deployment stint"].(*appsv1.Deployment)
			fits(t, all, d)
			if c.check != nil {
				c.check(t, all, d)
			}
		})
	}
}

// fits checks what holds for all values: what selects pods finds them, what is mounted is there, and the pod has the rights of the image.
func fits(t *testing.T, all map[string]any, d *appsv1.Deployment) {
	t.Helper()
	pod := d.Spec.Template.Spec
	for _, s := range all {
		if s, ok := s.(*corev1.Service); ok {
			for k, v := range s.Spec.Selector {
				if d.Spec.Template.Labels[k] != v {
					t.Errorf("%s selects %s=%s, which pods do not have", s.Name, k, v)
				}
			}
			for _, p := range s.Spec.Ports {
				if !slices.ContainsFunc(pod.Containers[0].Ports, func(c corev1.ContainerPort) bool { return c.Name == p.TargetPort.StrVal }) {
					t.Errorf("%s leads to %s, on which no pod listens", s.Name, p.TargetPort.StrVal)
				}
			}
		}
	}
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
		if v.ConfigMap != nil && all["ConfigMap "+v.ConfigMap.Name] == nil {
			t.Errorf("there is no ConfigMap %s", v.ConfigMap.Name)
		}
	}
	for _, m := range pod.Containers[0].VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("there is no volume %s", m.Name)
		}
		delete(volumes, m.Name)
	}
	if len(volumes) > 0 {
		t.Errorf("%v are not mounted", volumes)
	}
	c := pod.Containers[0].SecurityContext
	if !*c.ReadOnlyRootFilesystem || *c.AllowPrivilegeEscalation || !*pod.SecurityContext.RunAsNonRoot || *pod.AutomountServiceAccountToken {
		t.Errorf("%+v, %+v", c, pod.SecurityContext)
	}
	seen := map[string]bool{}
	for _, v := range pod.Containers[0].Env {
		if seen[v.Name] {
			t.Errorf("%s is set twice", v.Name)
		}
		seen[v.Name] = true
	}
}

// TestChartRejects has values that would not do what is meant.
func TestChartRejects(t *testing.T) {
	for values, want := range map[string]string{
		"replicas: 2":                           "several pods need a Redis",
		"autoscaling: { enabled: true }":        "several pods need a Redis",
		redis + "autoscaling: { enable: true }": "enable",
		"replica: 2":                            "replica",
		"replicas: two":                         "replicas",
		"counters: { url: \"redis://h\", secret: { name: s } }":        "counters.url and counters.secret.name are both set",
		"counters: { url: \"redis://h\", password: { name: s } }":      "counters.url has no $(PASSWORD)",
		"database: { url: \"postgres://u:$(PASSWORD)@h\" }":            "set database.password.name",
		"database: { url: \"postgres://h\" }":                          "rules are in the database: set rules to",
		"ingress: { enabled: true }":                                   "want at least one of ingress.hosts",
		"ingress: { enabled: true, hosts: [h] }":                       "set gateway.enabled",
		"serviceMonitor: { enabled: true }\nadmin: { enabled: false }": "set admin.enabled",
		"ingress: { port: admin }":                                     "port",
		"service: { type: Public }":                                    "type",
	} {
		if text, err := render(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q: %.100s", values, err, want, text)
		}
	}
}

// TestChartLint has Helm look at the chart.
func TestChartLint(t *testing.T) {
	l := lint.AllWithKubeVersion(chartDir, nil, "limits", nil)
	for _, m := range l.Messages {
		if m.Severity > support.InfoSev {
			t.Error(m)
		}
	}
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	if v := version(t); c.Metadata.Version != v || c.Metadata.AppVersion != v {
		t.Errorf("the chart has %s for %s, and the release is %s", c.Metadata.Version, c.Metadata.AppVersion, v)
	}
}

// TestKubernetes compares the plain manifests with what the chart makes of its values, and builds them with kustomize.
func TestKubernetes(t *testing.T) {
	text, err := render(t, "")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintln(&b, "# Made of the chart beside it: cd tools/deploy && go test -run TestKubernetes -update")
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if !strings.HasPrefix(line, "# Source:") && !strings.Contains(line, "helm.sh/chart:") {
			fmt.Fprintln(&b, strings.ReplaceAll(line, "managed-by: Helm", "managed-by: kustomize"))
		}
	}
	file := filepath.Join(root, "deploy/kubernetes/base/stint.yaml")
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil { //nolint:gosec // everyone may read it
			t.Fatal(err)
		}
	}
	if got := read(t, "deploy/kubernetes/base/stint.yaml"); got != b.String() {
		t.Error("deploy/kubernetes/base/stint.yaml is not what the chart makes: its first line says how to write it anew")
	}
	build := func(dir string) map[string]any {
		t.Helper()
		m, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(root, "deploy/kubernetes", dir))
		if err != nil {
			t.Fatal(err)
		}
		text, err := m.AsYaml()
		if err != nil {
			t.Fatal(err)
		}
		return objects(t, string(text))
	}
	base := build("base")
	fits(t, base, base["Deployment stint"].(*appsv1.Deployment))
	shared := build("shared")
	d := shared["Deployment stint"].(*appsv1.Deployment)
	if v := variables(d); *d.Spec.Replicas != 3 || v["STINT_SERVER_COUNTERS"] != "stint-redis/url" || v["STINT_SERVER_DATABASE"] != "stint-database/url" || shared["PodDisruptionBudget stint"] == nil {
		t.Errorf("%d pods, %v", *d.Spec.Replicas, v)
	}
	if reflect.DeepEqual(base, shared) {
		t.Error("the overlay changes nothing")
	}
}

// TestNotes has the notes that are shown after an installation.
func TestNotes(t *testing.T) {
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	r, err := install(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(r.Info.Notes, "service/stint 8080:8080") || !strings.Contains(r.Info.Notes, "counters.url") {
		t.Error(r.Info.Notes)
	}
}
