package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
)

// Change is an entry of the change log.
type Change struct {
	Revision int64               `json:"revision" doc:"The revision. Changes made together have the same." example:"42"`
	Place    int64               `json:"place" doc:"The position within the revision, from 0." example:"0"`
	At       time.Time           `json:"at" doc:"When the change was made." example:"2026-01-31T12:00:00Z"`
	Actor    string              `json:"actor" doc:"Who made the change." example:"deploy"`
	Kind     string              `json:"kind" enum:"rule,tier,tenant,user,api_key,exemption,ban,token,history,counters" doc:"The kind of object; counters, which are of a subject such as user:alice, are deleted when they are reset." example:"rule"`
	ID       string              `json:"id" doc:"The id of the object." example:"search"`
	Action   string              `json:"action" enum:"create,update,delete" doc:"What was done." example:"update"`
	Fields   []catalog.FieldDiff `json:"fields" nullable:"false" doc:"For an update: the fields that changed."`
	Before   json.RawMessage     `json:"before,omitempty" doc:"The old value. Missing, if it was created. Hashes are masked."`
	After    json.RawMessage     `json:"after,omitempty" doc:"The new value. Missing, if it was deleted. Hashes are masked."`
}

// ChangeList is a page of changes.
type ChangeList struct {
	Items []Change `json:"items" nullable:"false" doc:"The changes, newest first."`
	Next  string   `json:"next" doc:"The value of before for the next page. Empty on the last page." example:"41.3"`
}

// Revert says which changes of a revision to undo.
type Revert struct {
	Kind  string `json:"kind,omitempty" doc:"Only the object of this kind with this id. Without both, everything that the revision changed." example:"rule"`
	ID    string `json:"id,omitempty" doc:"See kind." example:"search"`
	Force bool   `json:"force,omitempty" doc:"Undo objects that have changed since, too." example:"false"`
}

// changes returns changes of the catalog.
func (a *API) changes(ctx context.Context, q catalog.ChangeQuery) (ChangeList, error) {
	if a.options.Catalog == nil {
		return ChangeList{}, a.errNoLog()
	}
	items, next, err := a.options.Catalog.Changes(ctx, q)
	if err != nil {
		return ChangeList{}, asParameters(err)
	}
	return ChangeList{converted(items, changeOf), next}, nil
}

func changeOf(c *catalog.LoggedChange) Change {
	return Change{c.Revision, c.Place, c.At, c.Actor, c.Kind, c.ID, c.Action, c.Fields, c.Before, c.After}
}

// errNoLog is the error of the change log if rules are in a file.
func (a *API) errNoLog() error {
	return fail(http.StatusConflict, "there is no change log: rules are in the file "+a.options.File)
}

func (a *API) addChanges() {
	type listInput struct {
		Kind     string    `query:"kind" enum:"rule,tier,tenant,user,api_key,exemption,ban,token,history,counters" doc:"Only for this kind of object." example:"rule"`
		ID       string    `query:"id" maxLength:"1024" doc:"Only for the object with this id; requires kind." example:"search"`
		Actor    string    `query:"actor" maxLength:"1024" doc:"Only by this actor." example:"deploy"`
		From     time.Time `query:"from" doc:"Only from this time on." example:"2026-01-01T00:00:00Z"`
		To       time.Time `query:"to" doc:"Only before this time." example:"2026-02-01T00:00:00Z"`
		Revision int64     `query:"revision" minimum:"1" doc:"Only of this revision." example:"42"`
		Before   string    `query:"before" maxLength:"64" doc:"Only changes before this revision, or the next of the previous page." example:"41.3"`
		Limit    int       `query:"limit" default:"100" minimum:"1" maximum:"1000" doc:"The maximum number of results." example:"100"`
	}
	addQuery(a, operation{
		ID: "listChanges", Method: http.MethodGet, Path: "/changes", Tag: tagChanges,
		Summary: "List changes", Description: "Returns the change log of the catalog, newest first.",
		Problems: []int{http.StatusConflict},
	}, catalog.Viewer, func(ctx context.Context, in *listInput) (ChangeList, error) {
		return a.changes(ctx, catalog.ChangeQuery(*in))
	})

	type revertInput struct {
		Revision int64 `path:"revision" minimum:"1" doc:"The revision to undo." example:"42"`
		DryRun
		Body *Revert
	}
	add(a, operation{
		ID: "revertChange", Method: http.MethodPost, Path: "/changes/{revision}/revert", Tag: tagChanges,
		Summary: "Undo changes",
		Description: "Undoes the changes of a revision, as a new revision, and returns what changed. " +
			"If any of it has changed since, that is a conflict, unless force is set. A deleted API key is restored as it was.",
		Problems: []int{http.StatusConflict},
	}, catalog.Operator, func(ctx context.Context, in *revertInput) (*Changed[catalog.Diff], error) {
		if a.options.Catalog == nil {
			return nil, a.errFile()
		}
		o := catalog.RevertOptions{Actor: actor(ctx), Revision: in.Revision, DryRun: in.DryRun.DryRun}
		if in.Body != nil {
			o.Kind, o.ID, o.Force = in.Body.Kind, in.Body.ID, in.Body.Force
		}
		diff, err := a.options.Catalog.Revert(ctx, o)
		if err != nil {
			return nil, err
		}
		diff.Items = append([]catalog.DiffItem{}, diff.Items...)
		a.written(ctx, in.DryRun)
		return new(changed(in.DryRun, diff)), nil
	})
}
