package admin

import (
	"context"
	"errors"
	"net/http"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
)

// SubjectOverride is a limit that overrides that of the tier.
type SubjectOverride struct {
	Name  string       `json:"limit_name" doc:"The name of the limit." example:"daily"`
	Limit string       `json:"limit" doc:"The new limit." example:"200/day"`
	Until catalog.Time `json:"until,omitzero" doc:"When the override ends. Never, if it is missing." example:"2026-12-31T00:00:00Z"`
}

// NewOverride is an override to set.
type NewOverride struct {
	Limit string       `json:"limit" doc:"The limit, or unlimited." example:"200/day"`
	Until catalog.Time `json:"until,omitzero" doc:"When it ends. Never, if it is missing." example:"2026-12-31T00:00:00Z"`
}

// addOverrides adds the operations that set and remove overrides.
func (a *API) addOverrides() {
	type putInput struct {
		SubjectPath
		Name string `path:"limit_name" maxLength:"255" doc:"The name of the limit, URL-escaped." example:"daily"`
		DryRun
		Body NewOverride
	}
	add(a, operation{
		ID: "putOverride", Method: http.MethodPut, Path: "/subjects/{kind}/{id}/overrides/{limit_name}", Tag: tagSubjects,
		Summary: "Override a limit", Description: "Gives a user or an API key a limit that overrides that of its tier. A user that does not exist is created.",
		Problems: []int{http.StatusConflict},
	}, catalog.Operator, func(ctx context.Context, in *putInput) (*Changed[SubjectOverride], error) {
		s, err := in.subject()
		if err != nil {
			return nil, err
		}
		if err := a.checkUntil(in.Body.Until); err != nil {
			return nil, err
		}
		err = a.override(ctx, s, in.DryRun, true, func(limits *map[string]catalog.Override) error {
			if *limits == nil {
				*limits = map[string]catalog.Override{}
			}
			(*limits)[in.Name] = catalog.Override(in.Body)
			return nil
		})
		return new(changed(in.DryRun, SubjectOverride{in.Name, in.Body.Limit, in.Body.Until})), err
	})

	type deleteInput struct {
		SubjectPath
		Name string `path:"limit_name" maxLength:"255" doc:"The name of the limit, URL-escaped." example:"daily"`
		DryRun
	}
	add(a, operation{
		ID: "endOverride", Method: http.MethodDelete, Path: "/subjects/{kind}/{id}/overrides/{limit_name}", Tag: tagSubjects,
		Summary: "Remove an override", Description: "Applies the limit of the tier to a user or an API key again.",
		Problems: []int{http.StatusConflict, http.StatusUnprocessableEntity},
	}, catalog.Operator, func(ctx context.Context, in *deleteInput) (*Gone, error) {
		s, err := in.subject()
		if err != nil {
			return nil, err
		}
		return &Gone{in.header()}, a.override(ctx, s, in.DryRun, false, func(limits *map[string]catalog.Override) error {
			if _, ok := (*limits)[in.Name]; !ok {
				return &catalog.NotFoundError{Kind: "override", ID: in.Name}
			}
			delete(*limits, in.Name)
			return nil
		})
	})
}

// override changes the overrides of a subject.
func (a *API) override(ctx context.Context, s *subject, d DryRun, create bool, change func(*map[string]catalog.Override) error) error {
	c, err := a.writing(d)
	if err != nil {
		return err
	}
	switch s.kind {
	case "user":
		for {
			_, err = c.Users.Modify(ctx, actor(ctx), s.id, func(u *catalog.User) error { return change(&u.Limits) })
			if missing := new(catalog.NotFoundError); !create || !errors.As(err, &missing) || missing.Kind != "user" {
				break
			}
			u := catalog.User{ID: s.id}
			if err = change(&u.Limits); err == nil {
				_, err = c.Users.Create(ctx, actor(ctx), u)
			}
			if !errors.As(err, new(*catalog.ConflictError)) || ctx.Err() != nil {
				break
			}
		}
	case "key":
		_, err = c.APIKeys.Modify(ctx, actor(ctx), s.id, func(k *catalog.APIKey) error { return change(&k.Limits) })
	default:
		return blame(http.StatusBadRequest, "kind", strict.Quote(s.kind)+": want user or key, which can have overrides", "")
	}
	if err == nil {
		a.written(ctx, d)
	}
	return err
}
