package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
)

// Change is one line of the log of changes.
type Change struct {
	Revision int64               `json:"revision" doc:"The revision that it is of. What was changed together has the same." example:"42"`
	Place    int64               `json:"place" doc:"Its place in that, from 0." example:"0"`
	At       time.Time           `json:"at" doc:"When it was made." example:"2026-01-31T12:00:00Z"`
	Actor    string              `json:"actor" doc:"Who has made it." example:"deploy"`
	Kind     string              `json:"kind" enum:"rule,tier,tenant,user,api_key,exemption,ban,token" doc:"What was changed." example:"rule"`
	ID       string              `json:"id" doc:"Which one." example:"search"`
	Action   string              `json:"action" enum:"create,update,delete" doc:"What became of it." example:"update"`
	Fields   []catalog.FieldDiff `json:"fields" nullable:"false" doc:"Of an update: the fields that are not as they were."`
	Before   json.RawMessage     `json:"before,omitempty" doc:"What it was; without it, it was made. Hashes are hidden."`
	After    json.RawMessage     `json:"after,omitempty" doc:"What it is now; without it, it was deleted. Hashes are hidden."`
}

// ChangeList is some changes.
type ChangeList struct {
	Items []Change `json:"items" nullable:"false" doc:"The changes, newest first."`
	Next  string   `json:"next" doc:"What to give as before for those that come next; empty: there are none." example:"41.3"`
}

// Revert says what of a revision is to be undone.
type Revert struct {
	Kind  string `json:"kind,omitempty" doc:"Only the thing of this kind with this id. Without both, all that the revision has changed." example:"rule"`
	ID    string `json:"id,omitempty" doc:"See kind." example:"search"`
	Force bool   `json:"force,omitempty" doc:"Undo also what has changed again since." example:"false"`
}

// changes returns changes of the catalog.
func (a *API) changes(ctx context.Context, q catalog.ChangeQuery) (ChangeList, error) {
	list := ChangeList{Items: []Change{}}
	if a.options.Catalog == nil {
		return list, fail(http.StatusConflict, "there is no log of changes: rules are in the file "+a.options.File)
	}
	items, next, err := a.options.Catalog.Changes(ctx, q)
	if err != nil {
		return list, asParameters(err)
	}
	for i := range items {
		c := &items[i]
		list.Items = append(list.Items, Change{c.Revision, c.Place, c.At, c.Actor, c.Kind, c.ID, c.Action, c.Fields, c.Before, c.After})
	}
	list.Next = next
	return list, nil
}

func (a *API) addChanges() {
	type listInput struct {
		Kind   string `query:"kind" enum:"rule,tier,tenant,user,api_key,exemption,ban,token" doc:"Only of this kind." example:"rule"`
		ID     string `query:"id" maxLength:"1024" doc:"Only of the one with this id; with kind." example:"search"`
		Actor  string `query:"actor" maxLength:"1024" doc:"Only by this actor." example:"deploy"`
		Before string `query:"before" maxLength:"64" doc:"Only before a revision, or what the page before has told as next." example:"41.3"`
		Limit  int    `query:"limit" default:"100" minimum:"1" maximum:"1000" doc:"At most so many." example:"100"`
	}
	add(a, operation{
		ID: "listChanges", Method: http.MethodGet, Path: "/changes", Tag: tagChanges,
		Summary: "Who has changed what", Description: "Returns the log of changes of the catalog, newest first.",
		Problems: []int{http.StatusConflict},
	}, catalog.Viewer, func(ctx context.Context, in *listInput) (*struct{ Body ChangeList }, error) {
		list, err := a.changes(ctx, catalog.ChangeQuery(*in))
		return &struct{ Body ChangeList }{list}, err
	})

	type revertInput struct {
		Revision int64 `path:"revision" minimum:"1" doc:"The revision that is to be undone." example:"42"`
		DryRun
		Body *Revert
	}
	type revertOutput struct {
		DryRun string `header:"Stint-Dry-Run" doc:"Is true if nothing was changed." example:"true"`
		Body   catalog.Diff
	}
	add(a, operation{
		ID: "revertChange", Method: http.MethodPost, Path: "/changes/{revision}/revert", Tag: tagChanges,
		Summary: "Undo changes",
		Description: "Makes what a revision has changed what it was before, as a revision of its own, and returns what that has changed. " +
			"If something of it has changed again since, that is a conflict, unless it is forced. An API key that was deleted comes back as it was.",
		Problems: []int{http.StatusConflict},
	}, catalog.Operator, func(ctx context.Context, in *revertInput) (*revertOutput, error) {
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
		if diff.Items == nil {
			diff.Items = []catalog.DiffItem{}
		}
		a.written(ctx, in.DryRun)
		return &revertOutput{in.header(), diff}, nil
	})
}
