package admin

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/strict"
)

// Record is an object of the catalog. Its value is as in a config file.
type Record[T any] struct {
	ID      string    `json:"id" doc:"The id, as used in paths."`
	Version int64     `json:"version" doc:"The version, for If-Match. 0: it is in a file." example:"12"`
	Created time.Time `json:"created_at,omitzero" doc:"When it was created." example:"2026-01-02T15:04:05Z"`
	Updated time.Time `json:"updated_at,omitzero" doc:"When it was last changed." example:"2026-01-03T08:00:00Z"`
	By      string    `json:"updated_by,omitempty" doc:"Who changed it last." example:"alice"`
	Value   T         `json:"value" doc:"The value."`
}

// RecordList is a page of records.
type RecordList[T any] struct {
	Items []T    `json:"items" nullable:"false" doc:"The items."`
	Next  string `json:"next" doc:"The value of after for the next page. Empty on the last page." example:""`
}

// Page selects a page of a list.
type Page struct {
	Limit  int    `query:"limit" default:"100" minimum:"1" maximum:"1000" doc:"The maximum number of results." example:"100"`
	After  string `query:"after" doc:"Only what comes after this: the next of the previous page. In lists by id it is an id." example:"search"`
	Prefix string `query:"prefix" doc:"Only ids that start with this text." example:"se"`
}

// sorted returns the page of a list that is sorted.
func (p *Page) sorted(sort string) catalog.Query {
	return catalog.Query{Limit: p.Limit, After: p.After, Prefix: p.Prefix, Sort: sort}
}

// DryRun is the parameter of writes that only check.
type DryRun struct {
	DryRun bool `query:"dry_run" default:"false" doc:"Check everything, respond as usual, and change nothing." example:"true"`
}

// header is the value of the header Stint-Dry-Run.
func (d DryRun) header() string {
	if d.DryRun {
		return "true"
	}
	return ""
}

// Seen is the version that a write is based on.
type Seen struct {
	IfMatch string `header:"If-Match" required:"false" doc:"The version that the change is based on, in quotes, or * for any version. Required." example:"\"12\""`
}

// anyVersion is for writes that are not based on a version.
var anyVersion = Seen{"*"}

// version returns the version, or 0 for any.
func (s Seen) version() (int64, error) {
	text := s.IfMatch
	switch text {
	case "":
		return 0, fail(http.StatusPreconditionRequired, `the header If-Match is missing, want the version that you have read, such as "12", or *`)
	case "*":
		return 0, nil
	}
	digits, ok := strings.CutPrefix(strings.TrimPrefix(text, "W/"), `"`) // a proxy that compresses responses makes it weak
	digits, ends := strings.CutSuffix(digits, `"`)
	version, err := strconv.ParseInt(digits, 10, 64)
	if !ok || !ends || err != nil || version < 1 {
		return 0, blame(http.StatusBadRequest, "If-Match", strict.Quote(text)+`: want one version in quotes, such as "12", or *`, "")
	}
	return version, nil
}

// etag returns the ETag of a version.
func etag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

// resource is a kind of object in the catalog. Its type is T in the catalog, W as the value
// of a record, and R as a record.
type resource[T, W, R any] struct {
	path, one, tag string // rules, rule
	example        string // an id
	patch          any    // an example of a patch
	key            string // the field with the id; empty: the id has no field
	table          func(*catalog.Catalog) *catalog.Table[T]
	filed          func(*catalog.Document) []T
	id             func(*T) string
	wire           func(*T) W
	// put updates the stored object, or rejects changes of read-only fields.
	put  func(W, *T) error
	show func(*API, Record[W]) R

	writer catalog.Role // the least role that changes it; default operator

	// For people who are restricted to tenants: visible reports whether an object exists for them (nil: none does), keep
	// checks what they change (nil: they change nothing), byTenant says that lists have the filter tenant, and theirs
	// returns the ids of their objects, if these are known.
	visible  func(*person, *T) bool
	keep     func(ctx context.Context, a *API, was, now *T) error
	byTenant bool
	theirs   func(*person) []string
	// fill adds to records what is not part of them. Nil: nothing.
	fill func(ctx context.Context, a *API, all []R) error
}

// writes returns the least role that changes it.
func (s *resource[T, W, R]) writes() catalog.Role { return cmp.Or(s.writer, catalog.Operator) }

// same is for objects that are shown as they are stored.
func same[T any](v *T) T { return *v }

// assign is for objects that are stored as they are sent.
func assign[T any](v T, into *T) error { *into = v; return nil }

// plain is for records without further fields.
func plain[W any](_ *API, r Record[W]) Record[W] { return r }

func (s *resource[T, W, R]) record(r *catalog.Record[T]) Record[W] {
	return Record[W]{s.id(&r.Value), r.Version, r.Created, r.Updated, r.By, s.wire(&r.Value)}
}

// shown is record for the person of the request. Who is restricted to tenants is not told who else works here.
func (s *resource[T, W, R]) shown(ctx context.Context, r *catalog.Record[T]) Record[W] {
	out := s.record(r)
	if p := personOf(ctx); p.scoped() {
		out.By = ""
	}
	return out
}

// errFile is the error of writes if rules are in a file.
func (a *API) errFile() error {
	return fail(http.StatusConflict, "rules are in the file "+a.options.File+": change them there")
}

// writing returns the catalog to write to, which for a dry run rolls back.
func (a *API) writing(d DryRun) (*catalog.Catalog, error) {
	switch {
	case a.options.Catalog == nil:
		return nil, a.errFile()
	case d.DryRun:
		return a.options.Catalog.Trial(), nil
	default:
		return a.options.Catalog, nil
	}
}

// takeTurn serializes writes with If-Match: *. They retry after a conflict, and among many
// at once some would never succeed.
func (a *API) takeTurn(ctx context.Context) (done func(), err error) {
	select {
	case a.turn <- struct{}{}:
		return func() { <-a.turn }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// get returns the object with an id.
func (s *resource[T, W, R]) get(ctx context.Context, a *API, id string) (catalog.Record[T], error) {
	if a.options.Catalog != nil {
		return s.table(a.options.Catalog).Get(ctx, id)
	}
	for _, v := range s.filed(a.options.Document()) {
		if s.id(&v) == id {
			return catalog.Record[T]{Value: v}, nil
		}
	}
	return catalog.Record[T]{}, &catalog.NotFoundError{Kind: s.one, ID: id}
}

// list returns a page. In file mode, keeps filters it.
func (s *resource[T, W, R]) list(ctx context.Context, a *API, q catalog.Query, keeps func(*T) bool) ([]catalog.Record[T], error) {
	if a.options.Catalog != nil {
		return s.table(a.options.Catalog).List(ctx, q)
	}
	var out []catalog.Record[T]
	for _, v := range s.filed(a.options.Document()) {
		if keeps(&v) {
			out = append(out, catalog.Record[T]{Value: v})
		}
	}
	return catalog.PageOf(out, q, s.id)
}

// kept returns the record of an object that was just written.
func (s *resource[T, W, R]) kept(ctx context.Context, a *API, d DryRun, v *T, version int64, was catalog.Record[T]) Record[W] {
	now := a.now().UTC().Truncate(time.Microsecond)
	once := catalog.OnceOf(ctx)
	if at := once.Now(); !at.IsZero() {
		now = at
	}
	r := catalog.Record[T]{Value: *v, Version: version, Created: was.Created, Updated: now, By: actor(ctx)}
	switch {
	case was.Version == version: // nothing was changed
		r = was
	case was.Created.IsZero():
		r.Created = now
	}
	if !d.DryRun && once == nil {
		// Someone else may have changed it since: the response is what this client has written.
		if found, err := s.table(a.options.Catalog).Get(ctx, s.id(v)); err == nil && found.Version == version {
			r = found
		}
	}
	return s.record(&r)
}

// retry reports whether to retry a write with If-Match: * after a conflict.
func retry(ctx context.Context, seen int64, err error) bool {
	return seen == 0 && errors.As(err, new(*catalog.ConflictError)) && ctx.Err() == nil
}

// replace changes an object.
func (s *resource[T, W, R]) replace(ctx context.Context, a *API, d DryRun, id string, ifMatch Seen, change func(*T) error) (*Recorded[R], error) {
	seen, err := ifMatch.version()
	if err != nil {
		return nil, err
	}
	c, err := a.writing(d)
	if err != nil {
		return nil, err
	}
	table := s.table(c)
	if seen == 0 {
		done, err := a.takeTurn(ctx)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	for {
		was, err := table.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		value := was.Value
		if err := s.exists(ctx, id, &was.Value); err != nil {
			return nil, err
		}
		if seen != 0 && was.Version != seen {
			return nil, &catalog.ConflictError{Kind: s.one, ID: id, Seen: seen, Found: was.Version}
		}
		if err := change(&value); err != nil {
			return nil, err
		}
		if err := s.change(ctx, a, &was.Value, &value); err != nil {
			return nil, err
		}
		if now := s.id(&value); now != id {
			return nil, blame(http.StatusUnprocessableEntity, s.key, strict.Quote(now)+": want "+strict.Quote(id)+", which is read-only", "")
		}
		version, err := table.Update(ctx, actor(ctx), value, was.Version)
		if retry(ctx, seen, err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		a.written(ctx, d)
		return s.recorded(a, d, s.kept(ctx, a, d, &value, version, was)), nil
	}
}

// remove deletes a version of an object; 0: any version.
func (s *resource[T, W, R]) remove(ctx context.Context, a *API, d DryRun, id string, seen int64) (*Gone, error) {
	c, err := a.writing(d)
	if err != nil {
		return nil, err
	}
	table := s.table(c)
	for {
		version := seen
		if seen == 0 {
			found, err := table.Get(ctx, id)
			if err != nil {
				return nil, err
			}
			version = found.Version
		}
		err := table.Delete(ctx, actor(ctx), id, version)
		if retry(ctx, seen, err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		a.written(ctx, d)
		return &Gone{d.header()}, nil
	}
}

// Recorded is a response with a record.
type Recorded[R any] struct {
	ETag string `header:"ETag" doc:"The version, in quotes, to use in If-Match." example:"\"12\""`
	Changed[R]
}

// Made is a response with a new record.
type Made[R any] struct {
	Recorded[R]
	Location string `header:"Location" doc:"The path of the object." example:"/admin/v1/rules/search"`
}

// Gone is the response of a write without a body.
type Gone struct {
	DryRun string `header:"Stint-Dry-Run" doc:"True if nothing was changed." example:"true"`
}

// Changed is the response of a write with a body.
type Changed[R any] struct {
	Gone
	Body R
}

func changed[R any](d DryRun, body R) Changed[R] { return Changed[R]{Gone{d.header()}, body} }

func (s *resource[T, W, R]) recorded(a *API, d DryRun, r Record[W]) *Recorded[R] {
	return &Recorded[R]{etag(r.Version), changed(d, s.show(a, r))}
}

// location is the path of an object.
func (s *resource[T, W, R]) location(id string) string {
	escaped := url.PathEscape(id)
	if id == "." || id == ".." { // which would be cleaned from the path
		escaped = strings.ReplaceAll(id, ".", "%2E")
	}
	return Prefix + "/" + s.path + "/" + escaped
}

// ByID is the id in a path.
type ByID struct {
	ID string `path:"id" maxLength:"1024" doc:"The id, URL-escaped." example:"search"`
}

// op returns an operation on the resource.
func (s *resource[T, W, R]) op(method, path, verb, summary, description string, problems ...int) operation {
	return operation{
		ID: verb, Method: method, Path: "/" + s.path + path, Tag: s.tag,
		Summary: summary, Description: description, Problems: problems, ExampleID: s.example,
	}
}

// word returns the name of the resource in ids of operations.
func (s *resource[T, W, R]) word() string { return strings.ToUpper(s.one[:1]) + s.one[1:] }

// addList adds the operation that lists a resource. The function converts a filter to a
// query and, for file mode, to a predicate.
func addList[F any, T, W, R any](a *API, s *resource[T, W, R], convert func(*F) (catalog.Query, func(*T) bool)) {
	op := s.op(http.MethodGet, "", "list"+strings.ToUpper(s.path[:1])+s.path[1:], "List "+s.path, "Returns "+s.path+" in pages, ordered by id, or as sort says.")
	op.Scoped = s.visible != nil
	addQuery(a, op,
		catalog.Viewer, func(ctx context.Context, in *F) (RecordList[R], error) {
			q, keeps := convert(in)
			found, err := s.found(ctx, a, q, keeps)
			if err != nil {
				return RecordList[R]{}, asParameters(err)
			}
			list := RecordList[R]{Items: converted(found, func(r *catalog.Record[T]) R { return s.show(a, s.shown(ctx, r)) })}
			if len(found) == q.Limit {
				list.Next = s.cursor(q, found)
			}
			if s.fill != nil {
				err = s.fill(ctx, a, list.Items)
			}
			return list, err
		})
}

// cursor returns what continues a list after a page.
func (s *resource[T, W, R]) cursor(q catalog.Query, page []catalog.Record[T]) string {
	last := &page[len(page)-1]
	return catalog.Cursor(q, last, s.id(&last.Value))
}

// asParameters makes problems of a query bad requests.
func asParameters(err error) error {
	if problems := strict.Problems(nil); errors.As(err, &problems) && len(problems) > 0 {
		return blameAll(http.StatusBadRequest, problems)
	}
	return err
}

// addReading adds the operations that get and delete an object.
func addReading[T, W, R any](a *API, s *resource[T, W, R]) {
	get := s.op(http.MethodGet, "/{id}", "get"+s.word(), "Get a "+s.one, "Returns the "+s.one+" with an id.")
	get.Scoped = s.visible != nil
	add(a, get,
		catalog.Viewer, func(ctx context.Context, in *ByID) (*Recorded[R], error) {
			r, err := s.mine(ctx, a, in.ID)
			if err != nil {
				return nil, err
			}
			out := s.recorded(a, DryRun{}, s.shown(ctx, &r))
			if s.fill != nil {
				one := []R{out.Body}
				err = s.fill(ctx, a, one)
				out.Body = one[0]
			}
			return out, err
		})

	type target struct {
		ByID
		Seen
		DryRun
	}
	add(a, s.op(http.MethodDelete, "/{id}", "delete"+s.word(), "Delete a "+s.one, "Deletes the version in If-Match.",
		http.StatusConflict, http.StatusPreconditionFailed, http.StatusPreconditionRequired, http.StatusUnprocessableEntity),
		s.writes(), func(ctx context.Context, in *target) (*Gone, error) {
			seen, err := in.version()
			if err != nil {
				return nil, err
			}
			return s.remove(ctx, a, in.DryRun, in.ID, seen)
		})
}

// addPatching adds the operation that patches an object.
func addPatching[T, W, R any](a *API, s *resource[T, W, R]) {
	op := s.op(http.MethodPatch, "/{id}", "patch"+s.word(), "Update fields of a "+s.one,
		"Applies a merge patch, as in RFC 7396: null deletes a field, an object is merged, and any other value replaces the old one. Fields that are not in the body stay.",
		http.StatusConflict, http.StatusPreconditionFailed, http.StatusPreconditionRequired)
	op.Scoped = s.keep != nil
	op.Consumes, op.Example = []string{"application/json", "application/merge-patch+json"}, s.patch
	add(a, op, s.writes(), func(ctx context.Context, in *struct {
		ByID
		Seen
		DryRun
		RawBody []byte
	},
	) (*Recorded[R], error) {
		patch, err := readPatch(in.RawBody)
		if err != nil {
			return nil, err
		}
		return s.replace(ctx, a, in.DryRun, in.ID, in.Seen, func(v *T) error {
			value, err := patched(s.wire(v), patch)
			if err != nil {
				return err
			}
			return s.put(value, v)
		})
	})
}

// addWriting adds the operations that create and replace an object.
func addWriting[T, W, R any](a *API, s *resource[T, W, R]) {
	create := s.op(http.MethodPost, "", "create"+s.word(), "Create a "+s.one, "Creates a "+s.one+".", http.StatusConflict)
	create.Status = http.StatusCreated
	add(a, create, s.writes(), func(ctx context.Context, in *struct {
		DryRun
		Body W
	},
	) (*Made[R], error) {
		c, err := a.writing(in.DryRun)
		if err != nil {
			return nil, err
		}
		var value T
		if err := s.put(in.Body, &value); err != nil {
			return nil, err
		}
		version, err := s.table(c).Create(ctx, actor(ctx), value)
		if err != nil {
			return nil, err
		}
		a.written(ctx, in.DryRun)
		r := s.kept(ctx, a, in.DryRun, &value, version, catalog.Record[T]{})
		return &Made[R]{*s.recorded(a, in.DryRun, r), s.location(r.ID)}, nil
	})
	addReplacing(a, s)
}

// addReplacing adds the operation that replaces an object.
func addReplacing[T, W, R any](a *API, s *resource[T, W, R]) {
	replace := s.op(http.MethodPut, "/{id}", "replace"+s.word(), "Replace a "+s.one, "Replaces the version of a "+s.one+" in If-Match. The id cannot change.",
		http.StatusConflict, http.StatusPreconditionFailed, http.StatusPreconditionRequired)
	replace.Scoped = s.keep != nil
	add(a, replace,
		s.writes(), func(ctx context.Context, in *struct {
			ByID
			Seen
			DryRun
			Body W
		},
		) (*Recorded[R], error) {
			return s.replace(ctx, a, in.DryRun, in.ID, in.Seen, func(v *T) error { return s.put(in.Body, v) })
		})
}
