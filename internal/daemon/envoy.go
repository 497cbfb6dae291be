package daemon

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/grpclimit/descriptor"
	"github.com/stintdev/stint/grpclimit/rlqs"
	"github.com/stintdev/stint/grpclimit/rls"
	"github.com/stintdev/stint/grpclimit/xds"
	"github.com/stintdev/stint/internal/daemon/envoystats"
	"github.com/stintdev/stint/internal/kit/strict"
	"github.com/stintdev/stint/rule"
)

// The values of envoy.on_store_failure.
const (
	onFailureLocal = "local"
	onFailureError = "error"
)

// used reports whether Envoy is served.
func (e *Envoy) used() bool { return e.Config != "" || e.XDS.Server != "" }

func (e *Envoy) options() descriptor.Options {
	return descriptor.Options{Merge: e.MergeDomains, FixedMonths: e.FixedMonths, Independent: e.Independent}
}

func (e *Envoy) dir() descriptor.DirOptions {
	return descriptor.DirOptions{DotFiles: e.DotFiles, Siblings: e.Siblings}
}

// Descriptors returns the descriptors of the files in envoy.config, or nil.
func (c *Config) Descriptors() *descriptor.Config { return c.descriptors }

// readsLike reports whether both read the same files in the same way. Otherwise a restart
// is needed.
func (e *Envoy) readsLike(o *Envoy) bool {
	return e.Config == o.Config && e.dir() == o.dir() && e.options() == o.options()
}

// checkEnvoy checks the settings of Envoy, and reads the files of descriptors.
func (k *checker) checkEnvoy() {
	c := k.config
	e := &c.Envoy
	if e.Config != "" && e.XDS.Server != "" {
		k.Add("envoy.xds.server", "is set together with envoy.config, want one of them", "")
	}
	for path, name := range map[string]string{
		"envoy.limit_header": e.LimitHeader, "envoy.remaining_header": e.RemainingHeader, "envoy.reset_header": e.ResetHeader,
	} {
		if !rule.IsToken(name) {
			k.Refuse(path, name, "the name of a header", "")
		}
	}
	k.oneOf("envoy.on_store_failure", e.OnStoreFailure, onFailureLocal, onFailureError)
	if e.NearLimitPercent < 1 || e.NearLimitPercent > 100 {
		k.Add("envoy.near_limit_percent", fmt.Sprintf("%d: want 1 to 100", e.NearLimitPercent), "")
	}
	if e.QuotaTerm != 0 {
		k.between("envoy.quota_term", e.QuotaTerm, 100*time.Millisecond, time.Minute)
	}
	if e.MaxConnectionAge != 0 {
		k.between("envoy.max_connection_age", e.MaxConnectionAge, time.Second, 365*24*time.Hour)
	}
	k.checkXDS()
	k.checkEnvoyOperate()
	if e.Config != "" {
		k.readDescriptors()
	}
}

func (k *checker) readDescriptors() {
	c := k.config
	// In the place of envoyproxy/ratelimit, someone may expect that what is beside it is read, too.
	mark := namedFile{path: c.Envoy.Config, other: true, dir: c.Envoy.dir(), reports: c.Envoy.AllowEmpty}
	files, skipped, err := mark.readDir()
	if err != nil && (!c.Envoy.AllowEmpty || !errors.Is(err, fs.ErrNotExist)) {
		c.named = append(c.named, mark)
		if errors.Is(err, fs.ErrNotExist) {
			k.Refuse("envoy.config", c.Envoy.Config, "a directory of YAML files, or one such file", "")
		} else {
			k.Add("envoy.config", err.Error(), "")
		}
		return
	}
	if err == nil {
		mark.hash = hashFiles(files, skipped)
	}
	if len(files) == 1 && files[0].Name == mark.path { // a single file is hashed like other files
		mark.hash = sha256.Sum256(files[0].Data)
	}
	c.descriptorsHash = mark.hash
	c.named = append(c.named, mark)
	if len(files) == 0 && !c.Envoy.AllowEmpty {
		k.Refuse("envoy.config", c.Envoy.Config, "a directory with YAML files, or one such file: there is none to read", "set envoy.allow_empty to start without limits")
		return
	}
	c.skipped = skipped
	c.descriptors, err = descriptor.Read(files, c.Envoy.options())
	if problems := strict.Problems(nil); errors.As(err, &problems) {
		c.descriptorProblems = append(c.descriptorProblems, problems...)
	} else if err != nil {
		k.Add("envoy.config", err.Error(), "")
	}
}

// hashFiles hashes the files of a directory, and the names of those that were skipped.
func hashFiles(files []descriptor.File, skipped []descriptor.Skipped) [sha256.Size]byte {
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%q %d\n", f.Name, len(f.Data))
		h.Write(f.Data)
	}
	fmt.Fprintf(h, "%q", skipped)
	return [sha256.Size]byte(h.Sum(nil))
}

func (k *checker) checkXDS() {
	x := &k.config.Envoy.XDS
	if x.Server == "" {
		return
	}
	for i, text := range x.Metadata {
		if name, _, ok := strings.Cut(text, "="); !ok || name == "" {
			k.Refuse(strict.Item("envoy.xds.metadata", i), text, "name=value", "")
		}
	}
	for i, h := range x.Headers {
		if name, _, ok := strings.Cut(string(h), "="); !ok || name == "" {
			k.Add(strict.Item("envoy.xds.headers", i), "want name=value", "") // the value may be a token
		}
	}
	if (x.TLSCert == "") != (x.TLSKey == "") {
		k.Add("envoy.xds.tls_cert", "want both tls_cert and tls_key, or neither", "")
	}
	k.atLeast("envoy.xds.max_message", x.MaxMessage, 1024)
	if _, err := x.tls(); err != nil && !k.has("envoy.xds.tls") {
		k.Add("envoy.xds.tls", err.Error(), "")
	}
	if o, err := x.options(); err == nil {
		o.Use = func(context.Context, []descriptor.Named) error { return nil }
		if _, err := xds.New(o); err != nil {
			setting := "server"
			if wrong := new(stint.InvalidError); errors.As(err, &wrong) {
				setting = cmp.Or(xdsSettings[wrong.Field], setting)
			}
			k.refuseErr("envoy.xds."+setting, err)
		}
	}
}

// xdsSettings are the settings of the options of the xDS client.
var xdsSettings = map[string]string{"NodeID": "node_id", "Metadata": "metadata", "Headers": "headers", "MaxMessage": "max_message"}

// tls returns the TLS configuration for the management server, or nil for plain text.
func (x *XDS) tls() (*tls.Config, error) {
	if !x.TLS && x.TLSCA == "" && x.TLSCert == "" && x.TLSServerName == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: x.TLSServerName}
	if x.TLSCA != "" {
		text, err := os.ReadFile(x.TLSCA)
		if err != nil {
			return nil, fmt.Errorf("tls_ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("tls_ca: %s has no certificate in PEM", x.TLSCA)
		}
	}
	if x.TLSCert != "" && x.TLSKey != "" {
		pair, err := tls.LoadX509KeyPair(x.TLSCert, x.TLSKey)
		if err != nil {
			return nil, fmt.Errorf("tls_cert: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

func (x *XDS) options() (xds.Options, error) {
	t, err := x.tls()
	return xds.Options{
		Server: x.Server, NodeID: x.NodeID, Metadata: pairs(x.Metadata), Headers: pairs(x.Headers), TLS: t, MaxMessage: x.MaxMessage,
	}, err
}

// pairs splits texts of the form name=value.
func pairs[T ~string](list []T) map[string]string {
	out := map[string]string{}
	for _, text := range list {
		name, value, _ := strings.Cut(string(text), "=")
		out[name] = value
	}
	return out
}

// envoy is the rate limit service for Envoy.
type envoy struct {
	service *rls.Service
	quotas  *rlqs.Server // nil: they are not served
	health  *health.Server
	xds     *xds.Client // nil: domains come from files
	loads   envoyLoads  // of files
	stats   *envoystats.Stats

	telling sync.Mutex // held while health is changed
}

// newEnvoy returns nil if Envoy is not served.
func (d *Daemon) newEnvoy() (*envoy, error) {
	c := &d.config.Envoy
	if !c.used() {
		return nil, nil
	}
	o := rls.Options{
		Store: d.store, Config: d.config.descriptors, Recorder: recorders{d.metrics, d.live, d.tap}, Shadow: c.ShadowMode, Quota: c.QuotaMode,
		Metadata: c.DynamicMetadata, DecisionHeader: c.DecisionHeader, NearRatio: float64(c.NearLimitPercent) / 100,
		// The admin API does not exist yet.
		Operators: func(next http.Handler) http.Handler { return d.operators.api.Operators(next) }, OnReset: d.logDescriptorReset,
	}
	if c.OnStoreFailure == onFailureError {
		o.OnFailure = stint.FailError
	}
	if c.ResponseHeaders {
		o.Headers = &rls.Headers{Limit: c.LimitHeader, Remaining: c.RemainingHeader, Reset: c.ResetHeader}
	}
	e := &envoy{health: health.NewServer()}
	if c.isWatched() {
		o.Served = func(took time.Duration) { e.stats.Served(envoystats.Limit, took) }
	}
	var err error
	if e.service, err = rls.New(o); err != nil {
		return nil, err
	}
	if c.QuotaTerm > 0 {
		e.quotas, err = rlqs.New(rlqs.Options{
			Limits: e.service, Store: d.store, OnFailure: o.OnFailure, Shadow: c.ShadowMode, Nodes: d.countReplicas, Term: time.Duration(c.QuotaTerm),
		})
		if err != nil {
			return nil, err
		}
	}
	e.stats = envoystats.New(envoystats.Options{Service: e.service, Loads: e.loaded, LocalCache: c.Metrics.LocalCache, Tags: c.Metrics.Tags})
	e.health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	e.health.SetServingStatus(envoyService, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	if c.XDS.Server != "" {
		options, err := c.XDS.options()
		if err != nil {
			return nil, err
		}
		options.Log = d.log
		options.Use = func(_ context.Context, domains []descriptor.Named) error {
			limits, err := descriptor.Compile(domains, c.options())
			if err != nil {
				return err
			}
			d.useDescriptors(limits)
			return nil
		}
		if e.xds, err = xds.New(options); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// envoyService is the name of the service in health checks, as in envoyproxy/ratelimit.
const envoyService = "ratelimit"

// logFiles logs which files were not read, what has no effect in the others, and whether
// there are none.
func (d *Daemon) logFiles(ctx context.Context, c *Config) {
	var skipped, ignored []string
	for _, s := range c.skipped {
		skipped = append(skipped, s.Path+": "+s.Why)
	}
	for _, i := range c.descriptors.Ignored() {
		ignored = append(ignored, i.String())
	}
	for _, text := range shorten(skipped) {
		d.log.WarnContext(ctx, "file not read: its limits do not apply", "text", text)
	}
	for _, text := range shorten(ignored) {
		d.log.WarnContext(ctx, "part of a file has no effect", "text", text)
	}
	if len(c.descriptors.Domains()) == 0 {
		d.log.WarnContext(ctx, "there are no limits: no file was read", "directory", c.Envoy.Config)
	}
}

// useDescriptors replaces the descriptors.
func (d *Daemon) useDescriptors(limits *descriptor.Config) {
	d.envoy.service.Use(limits)
	d.tellEnvoy()
}

// startEnvoy starts the service in the background.
func (d *Daemon) startEnvoy(ctx context.Context) {
	d.tellEnvoy()
	if d.envoy.xds != nil {
		d.work.Go(func() { _ = d.envoy.xds.Run(ctx) }) // until ctx ends
	}
	if m := &d.config.Envoy.Metrics; m.Statsd != "" {
		d.work.Go(func() {
			d.envoy.stats.Send(ctx, envoystats.Statsd{Address: m.Statsd, Protocol: m.Protocol, Interval: time.Duration(m.Interval), Log: d.log})
		})
	}
}

// problem describes a problem with the domains.
func (e *envoy) problem() string {
	if e.xds == nil {
		return ""
	}
	switch s := e.xds.State(); {
	case s.Problem != "" && s.Version == "":
		return "no domains have been received yet, so calls of Envoy fail: " + s.Problem
	case s.Problem != "":
		return "version " + s.Version + " of the domains stays in use: " + s.Problem
	case s.Version == "":
		return "no domains have been received yet, so calls of Envoy fail"
	}
	return ""
}
