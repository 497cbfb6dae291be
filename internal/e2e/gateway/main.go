// Command gateway is the part of Envoy Gateway that its rate limit service sees, for the tests of
// Stint: the translator of its resources, and the xDS server.
//
// Its module has a path below that of Envoy Gateway, because all this is in internal packages.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	egv1a1 "github.com/envoyproxy/gateway/api/v1alpha1"
	"github.com/envoyproxy/gateway/internal/envoygateway/config"
	"github.com/envoyproxy/gateway/internal/gatewayapi"
	"github.com/envoyproxy/gateway/internal/gatewayapi/resource"
	"github.com/envoyproxy/gateway/internal/globalratelimit/runner"
	"github.com/envoyproxy/gateway/internal/infrastructure/kubernetes/ratelimit"
	"github.com/envoyproxy/gateway/internal/ir"
	"github.com/envoyproxy/gateway/internal/logging"
	"github.com/envoyproxy/gateway/internal/message"
	"github.com/envoyproxy/gateway/internal/xds/translator"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/encoding/protojson"
	corev1 "k8s.io/api/core/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// main serves the resources in the file that each line of the input names. In the directory that is
// its first argument are the certificates, in certs/envoy-gateway, and it writes there: to
// container.json the container of the rate limit service, whose Redis is its second argument, and
// beside each file, with .limits at the end, the limits of its routes.
func main() {
	if err := serve(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}

func serve(dir, redis string) error {
	container, err := renderContainer(redis)
	if err != nil {
		return err
	}
	if err := write(filepath.Join(dir, "container.json"), container); err != nil {
		return err
	}
	var irs message.XdsIR
	settings := runner.Config{XdsIR: &irs, RunnerErrors: new(message.RunnerErrors)}
	settings.Logger = logger
	settings.EnvoyGateway = &egv1a1.EnvoyGateway{}
	settings.EnvoyGateway.Provider = &egv1a1.EnvoyGatewayProvider{
		Type: egv1a1.ProviderTypeCustom,
		Custom: &egv1a1.EnvoyGatewayCustomProvider{Infrastructure: &egv1a1.EnvoyGatewayInfrastructureProvider{
			Type: egv1a1.InfrastructureProviderTypeHost,
			Host: &egv1a1.EnvoyGatewayHostInfrastructureProvider{ConfigHome: &dir},
		}},
	}
	if err := runner.New(&settings).Start(context.Background()); err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		all, err := translate(lines.Text())
		if err != nil {
			return err
		}
		limits, err := routeLimits(all)
		if err != nil {
			return err
		}
		for key, xds := range all {
			irs.Store(key, &message.XdsIRWithContext{XdsIR: xds})
		}
		if err := write(lines.Text()+".limits", limits); err != nil {
			return err
		}
	}
	return lines.Err()
}

// write writes a file that is complete as soon as it exists.
func write(path string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

var logger = logging.DefaultLogger(os.Stderr, egv1a1.LogLevelInfo)

// renderContainer returns the container of the rate limit service.
func renderContainer(redis string) (*corev1.Container, error) {
	gateway := &egv1a1.EnvoyGateway{}
	gateway.RateLimit = &egv1a1.RateLimit{Backend: egv1a1.RateLimitDatabaseBackend{
		Type:  egv1a1.RedisBackendType,
		Redis: &egv1a1.RateLimitRedisSettings{URL: &redis},
	}}
	gateway.SetEnvoyGatewayDefaults()
	d, err := ratelimit.NewResourceRender(config.DefaultNamespace, gateway, nil).Deployment()
	if err != nil {
		return nil, err
	}
	return &d.Spec.Template.Spec.Containers[0], nil
}

// translate translates the resources of a file.
func translate(file string) (map[string]*ir.Xds, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	resources, err := resource.LoadResourcesFromYAMLBytes(text, true, nil)
	if err != nil {
		return nil, err
	}
	t := &gatewayapi.Translator{
		GatewayControllerName:   string(resources.GatewayClass.Spec.ControllerName),
		GatewayClassName:        gwapiv1.ObjectName(resources.GatewayClass.Name),
		GlobalRateLimitEnabled:  true,
		EndpointRoutingDisabled: true,
		Logger:                  logger,
	}
	// The error is about the certificates of Envoy, which do not matter here.
	result, _ := t.Translate(context.Background(), resources)
	for _, p := range result.BackendTrafficPolicies {
		for _, a := range p.Status.Ancestors {
			for _, c := range a.Conditions {
				if c.Status != "True" {
					return nil, fmt.Errorf("%s: %s: %s", p.Name, c.Type, c.Message)
				}
			}
		}
	}
	return result.XdsIR, nil
}

// routeLimits returns what Envoy gets for each route, by its name.
func routeLimits(all map[string]*ir.Xds) (map[string][]json.RawMessage, error) {
	limits := map[string][]json.RawMessage{}
	for _, xds := range all {
		t := &translator.Translator{
			GlobalRateLimit: &translator.GlobalRateLimitSettings{ServiceURL: ratelimit.GetServiceURL(config.DefaultNamespace, config.DefaultDNSDomain)},
			Logger:          logger,
		}
		table, err := t.Translate(context.Background(), xds)
		if err != nil {
			return nil, err
		}
		for _, r := range table.XdsResources[resourcev3.RouteType] {
			for _, host := range r.(*routev3.RouteConfiguration).GetVirtualHosts() {
				for _, route := range host.GetRoutes() {
					for _, settings := range route.GetTypedPerFilterConfig() {
						var limit ratelimitv3.RateLimitPerRoute
						if !settings.MessageIs(&limit) {
							continue
						}
						if err := settings.UnmarshalTo(&limit); err != nil {
							return nil, err
						}
						text, err := protojson.Marshal(&limit)
						if err != nil {
							return nil, err
						}
						limits[route.GetName()] = append(limits[route.GetName()], text)
					}
				}
			}
		}
	}
	return limits, nil
}
