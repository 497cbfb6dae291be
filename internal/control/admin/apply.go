package admin

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
)

func (a *API) addApply() {
	add(a, operation{
		ID: "apply", Method: http.MethodPost, Path: "/apply", Tag: tagWhole,
		Summary: "Apply a document",
		Description: "Makes the catalog what a document says, in one change, or with dry_run says what that would change. " +
			"What the document lacks stays, unless it is to be pruned.",
		MaxBody: strict.MaxSize,
		Timeout: 2 * time.Minute, Problems: []int{http.StatusConflict},
	}, catalog.Operator, func(ctx context.Context, in *struct {
		DryRun
		Prune bool `query:"prune" default:"false" doc:"Delete what the document lacks: rules, tiers, exemptions and bans, and, of tenants, users and keys, those kinds of which the document has any." example:"false"`
		Body  catalog.Document
	},
	) (*struct {
		DryRun string `header:"Stint-Dry-Run" doc:"Is true if nothing was changed." example:"true"`
		Body   catalog.Diff
	}, error,
	) {
		if a.options.Catalog == nil {
			return nil, a.errFile()
		}
		d, err := a.options.Catalog.Apply(ctx, &in.Body, catalog.ApplyOptions{Actor: actor(ctx), DryRun: in.DryRun.DryRun, Prune: in.Prune})
		if err != nil {
			return nil, err
		}
		a.written(ctx, in.DryRun)
		return &struct {
			DryRun string `header:"Stint-Dry-Run" doc:"Is true if nothing was changed." example:"true"`
			Body   catalog.Diff
		}{in.header(), d}, nil
	})

	add(a, operation{
		ID: "export", Method: http.MethodGet, Path: "/export", Tag: tagWhole,
		Summary: "The whole as a document",
		Description: "Returns the catalog as it is at one moment, as a document that can be applied, or be a config file. " +
			"Users and their keys, with the hashes of their secrets, are only for operators.",
		Answer: "The document.",
		Produces: []content{
			{ContentType: "application/json", Type: reflect.TypeFor[catalog.Document]()},
			{ContentType: "application/toml", Type: reflect.TypeFor[string](), Doc: "The same, as a config file has it."},
		},
	}, catalog.Viewer, func(ctx context.Context, in *struct {
		Users  bool   `query:"users" default:"false" doc:"Users and API keys, too." example:"true"`
		Format string `query:"format" enum:"json,toml" default:"json" doc:"How it is written." example:"toml"`
	},
	) (*streamed, error) {
		if p := personOf(ctx); in.Users && !p.Role.Includes(catalog.Operator) {
			return nil, fail(http.StatusForbidden, "users and keys are for the role operator")
		}
		return &streamed{func() {
			out := &late{sender: newSender(ctx), contentType: "application/" + in.Format}
			defer out.end()
			err := a.exportWhole(ctx, out, in.Users, in.Format)
			switch {
			case err == nil:
			case !out.begun:
				a.problem(out.w, out.Request, err)
			default:
				if ctx.Err() == nil && out.err == nil {
					a.log.LogAttrs(ctx, slog.LevelError, "admin: an export has failed", slog.Any("error", err))
				}
				panic(http.ErrAbortHandler) // or what is not whole would look as if it were
			}
		}}, nil
	})
}

// late is a sender that begins with what is first written: until then there may be a
// problem to tell.
type late struct {
	*sender
	contentType string
	begun       bool
}

// Write implements [io.Writer].
func (l *late) Write(p []byte) (int, error) {
	if !l.begun {
		l.begun = true
		l.begin(l.contentType)
	}
	return l.sender.Write(p)
}

// exportWhole writes the whole.
func (a *API) exportWhole(ctx context.Context, w io.Writer, users bool, format string) error {
	if c := a.options.Catalog; c != nil {
		o := catalog.ExportOptions{Users: users}
		if format == "toml" {
			return c.ExportTOML(ctx, w, o)
		}
		return c.ExportJSON(ctx, w, o)
	}
	d := *a.options.Document()
	if !users {
		d.Users, d.APIKeys = nil, nil
	}
	if format == "toml" {
		text, err := strict.AppendTOML(nil, d)
		if err == nil {
			_, err = w.Write(text)
		}
		return err
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(d)
}
