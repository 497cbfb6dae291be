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
		Description: "Makes the catalog match a document, in one change. With dry_run it only says what would change. " +
			"Objects that are not in the document stay, unless prune is set. " +
			"While a node refuses the history of the database, because it was emptied, set back or replaced, nothing is applied unless accept_history is set.",
		MaxBody: strict.MaxSize,
		Timeout: 2 * time.Minute, Problems: []int{http.StatusConflict},
	}, catalog.Operator, func(ctx context.Context, in *struct {
		DryRun
		Prune  bool `query:"prune" default:"false" doc:"Delete rules, tiers, exemptions and bans that are not in the document. Tenants, users and keys are only deleted if the document has at least one of their kind." example:"false"`
		Accept bool `query:"accept_history" default:"false" doc:"Have all nodes use the database as it is then, although it was emptied, set back or replaced. The document may be empty." example:"false"`
		Body   catalog.Document
	},
	) (*Changed[catalog.Diff], error) {
		if a.options.Catalog == nil {
			return nil, a.errFile()
		}
		d, err := a.options.Catalog.Apply(ctx, &in.Body, catalog.ApplyOptions{Actor: actor(ctx), DryRun: in.DryRun.DryRun, Prune: in.Prune, AcceptHistory: in.Accept})
		if err != nil {
			return nil, err
		}
		a.written(ctx, in.DryRun)
		return new(changed(in.DryRun, d)), nil
	})

	add(a, operation{
		ID: "export", Method: http.MethodGet, Path: "/export", Tag: tagWhole,
		Summary: "Export the catalog",
		Description: "Returns the catalog, at one point in time, as a document that can be applied or used as a config file. " +
			"Users and keys, with the hashes of their secrets, are only exported for operators.",
		Answer: "The document.",
		Produces: []content{
			{ContentType: "application/json", Type: reflect.TypeFor[catalog.Document]()},
			{ContentType: "application/toml", Type: reflect.TypeFor[string](), Doc: "The same, in the format of a config file."},
		},
	}, catalog.Viewer, func(ctx context.Context, in *struct {
		Users  bool   `query:"users" default:"false" doc:"Include users and API keys." example:"true"`
		Format string `query:"format" enum:"json,toml" default:"json" doc:"The format." example:"toml"`
	},
	) (*streamed, error) {
		if p := personOf(ctx); in.Users && !p.Role.Includes(catalog.Operator) {
			return nil, fail(http.StatusForbidden, "users and keys need the role operator")
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
					a.log.LogAttrs(ctx, slog.LevelError, "admin: export failed", slog.Any("error", err))
				}
				panic(http.ErrAbortHandler) // or the client would take a part for the whole
			}
		}}, nil
	})
}

// late is a sender that sends the header with the first write: until then, an error can
// still become a problem.
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

// exportWhole writes the catalog.
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
