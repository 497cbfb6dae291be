package e2e_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestKubernetes runs the pod of deploy/kubernetes/base, which is the one of the chart: with its variables, arguments and files, the
// probes are answered. tools/deploy checks what Kubernetes reads of it.
func TestKubernetes(t *testing.T) {
	t.Parallel()
	type probe struct {
		HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
	}
	var pod struct {
		Args []string
		Env  []struct {
			Name, Value string
			ValueFrom   any `yaml:"valueFrom"`
		}
		StartupProbe   probe `yaml:"startupProbe"`
		LivenessProbe  probe `yaml:"livenessProbe"`
		ReadinessProbe probe `yaml:"readinessProbe"`
	}
	config := ""
	for d := yaml.NewDecoder(strings.NewReader(read(t, "../../deploy/kubernetes/base/stint.yaml"))); ; {
		var o struct {
			Kind string
			Data map[string]string
			Spec struct {
				Template struct {
					Spec struct{ Containers []yaml.Node }
				}
			}
		}
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			// Specs of other kinds have other forms.
			t.Fatal(err)
		}
		switch o.Kind {
		case "ConfigMap":
			config = o.Data["stint.toml"]
		case "Deployment":
			if err := o.Spec.Template.Spec.Containers[0].Decode(&pod); err != nil {
				t.Fatal(err)
			}
		}
	}
	if want := []string{"serve", "--config", "/etc/stint/config/stint.toml"}; !slices.Equal(pod.Args, want) || config == "" {
		t.Fatalf("%q, and the configuration is %q", pod.Args, config)
	}
	var environ []string
	for _, v := range pod.Env {
		value := v.Value
		switch {
		case strings.HasSuffix(v.Name, "_ADDRESS"):
			value = "127.0.0.1:0"
		case v.Name == "STINT_SERVER_DRAIN_DELAY":
			value = "0s" // the test has no load balancer that must hear of the end
		case v.Name == "GOMEMLIMIT":
			value = "536870912" // as Kubernetes writes it
		case v.Name == "STINT_SERVER_CATALOG_NODE":
			value = "stint-7d4b9c6f5-x2x2x"
		case v.ValueFrom != nil:
			t.Errorf("what is the value of %s?", v.Name)
		}
		environ = append(environ, v.Name+"="+value)
	}
	s := serve(t, config, environ...)
	for _, p := range []probe{pod.StartupProbe, pod.LivenessProbe, pod.ReadinessProbe} {
		url := map[string]string{"http": s.api}[p.HTTPGet.Port] + p.HTTPGet.Path
		s.wait(t, func() error {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
			if err != nil {
				return err
			}
			if status, body, _ := answerOf(t, http.DefaultClient, r); status != http.StatusOK {
				return fmt.Errorf("%s: %d: %s", url, status, body)
			}
			return nil
		})
	}
	if s.url("admin") == "" {
		t.Error("the admin API does not listen")
	}
}
