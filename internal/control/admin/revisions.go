package admin

import (
	"context"
	"net/http"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
)

// LoggedRevision is the changes that were made together.
type LoggedRevision struct {
	Revision int64     `json:"revision" doc:"The number of the revision." example:"42"`
	At       time.Time `json:"at" doc:"When the changes were made." example:"2026-01-31T12:00:00Z"`
	Actor    string    `json:"actor" doc:"Who made them." example:"deploy"`
	Total    int64     `json:"total" doc:"How many changes the revision has." example:"12"`
	Changes  []Change  `json:"changes" nullable:"false" doc:"The first of them that match kind and id: at most 5. GET /changes?revision=42 returns all."`
}

// RevisionList is a page of revisions.
type RevisionList struct {
	Items []LoggedRevision `json:"items" nullable:"false" doc:"The revisions, newest first."`
	Next  string           `json:"next" doc:"The value of before for the next page. Empty on the last page." example:"41"`
}

func (a *API) addRevisions() {
	type listInput struct {
		Kind   string    `query:"kind" enum:"rule,tier,tenant,user,api_key,exemption,ban,token,history,counters" doc:"Only with a change of this kind of object." example:"rule"`
		ID     string    `query:"id" maxLength:"1024" doc:"Only with a change of the object with this id; requires kind. That of counters is the subject, such as user:alice." example:"search"`
		Actor  string    `query:"actor" maxLength:"1024" doc:"Only by this actor." example:"deploy"`
		From   time.Time `query:"from" doc:"Only from this time on." example:"2026-01-01T00:00:00Z"`
		To     time.Time `query:"to" doc:"Only before this time." example:"2026-02-01T00:00:00Z"`
		Before string    `query:"before" maxLength:"64" doc:"Only revisions before this one: the next of the previous page." example:"41"`
		Limit  int       `query:"limit" default:"50" minimum:"1" maximum:"200" doc:"The maximum number of results." example:"50"`
	}
	addQuery(a, operation{
		ID: "listRevisions", Method: http.MethodGet, Path: "/revisions", Tag: tagChanges,
		Summary:     "List revisions",
		Description: "Returns the change log of the catalog, newest first, with one entry for the changes that were made together, such as those of one apply.",
		Problems:    []int{http.StatusConflict},
	}, catalog.Viewer, func(ctx context.Context, in *listInput) (RevisionList, error) {
		if a.options.Catalog == nil {
			return RevisionList{}, a.errNoLog()
		}
		items, next, err := a.options.Catalog.Revisions(ctx, catalog.ChangeQuery{
			Kind: in.Kind, ID: in.ID, Actor: in.Actor, From: in.From, To: in.To, Before: in.Before, Limit: in.Limit,
		})
		if err != nil {
			return RevisionList{}, asParameters(err)
		}
		return RevisionList{converted(items, func(r *catalog.Revision) LoggedRevision {
			return LoggedRevision{r.Revision, r.At, r.Actor, r.Total, converted(r.Changes, changeOf)}
		}), next}, nil
	})
}
