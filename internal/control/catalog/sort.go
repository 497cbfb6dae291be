package catalog

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/stintdev/stint/internal/kit/strict"
)

// Lists are sorted by id, or by another field and then by id. Pages continue after a key and not after a number of rows, so
// that what is created or deleted meanwhile neither hides nor repeats another row.

// sorts are the fields that tables can be sorted by, each with its SQL expression.
func (c *Catalog) sorts(kind string) filters {
	f := filters{"id": "id", "created_at": "created_at", "updated_at": "updated_at"}
	switch kind {
	case kindRule:
		f["priority"] = "CAST(COALESCE(body ->> 'priority', '0') AS BIGINT)"
	case kindKey, kindTenant:
		collation := ""
		if c.dialect.Postgres() {
			collation = ` COLLATE "C"`
		}
		f["name"] = "lower(COALESCE(body ->> 'name', '')" + collation + ")" // as in the index
	}
	return f
}

// key is what a record is sorted by.
type key struct {
	Field  string `json:"f"`
	Number int64  `json:"n,omitempty"` // of microseconds, of a time
	Text   string `json:"t,omitempty"`
	ID     string `json:"i"`
}

func keyOf[T any](field string, r *Record[T], id string) key {
	k := key{Field: field, ID: id}
	switch field {
	case "created_at":
		k.Number = r.Created.UnixMicro()
	case "updated_at":
		k.Number = r.Updated.UnixMicro()
	case "priority", "name":
		switch v := any(&r.Value).(type) {
		case *Rule:
			k.Number = int64(v.Priority)
		case *APIKey:
			k.Text = lower(v.Name)
		case *Tenant:
			k.Text = lower(v.Name)
		}
	}
	return k
}

func (k key) compare(other key) int {
	return cmp.Or(cmp.Compare(k.Number, other.Number), cmp.Compare(k.Text, other.Text), cmp.Compare(k.ID, other.ID))
}

// argument is the key, without the id, as an argument of a statement.
func (k key) argument(c *Catalog) any {
	switch k.Field {
	case "created_at", "updated_at":
		return c.dialect.Time(time.UnixMicro(k.Number))
	case "priority":
		return k.Number
	default:
		return k.Text
	}
}

// order returns the field that the query sorts by, and whether the last comes first.
func (q *Query) order() (field string, down bool) {
	field, down = strings.CutPrefix(q.Sort, "-")
	return cmp.Or(field, "id"), down
}

// Cursor returns the value of After for what follows a record in a list.
func Cursor[T any](q Query, r *Record[T], id string) string {
	field, _ := q.order()
	if field == "id" {
		return id
	}
	text, _ := json.Marshal(keyOf(field, r, id)) // it does not fail
	return base64.RawURLEncoding.EncodeToString(text)
}

// after returns the key that the page begins after, and whether there is one.
func (q *Query) after() (k key, ok bool, err error) {
	field, _ := q.order()
	switch {
	case q.After == "":
		return k, false, nil
	case field == "id":
		return key{Field: field, ID: q.After}, true, nil
	}
	text, err := base64.RawURLEncoding.DecodeString(q.After)
	if err != nil || json.Unmarshal(text, &k) != nil || k.Field != field || !storable(k.Text) || !storable(k.ID) {
		return k, false, strict.Problems{{Path: "after", Message: strict.Quote(q.After) + ": want the next of a page that is sorted by " + field}}
	}
	return k, true, nil
}

// PageOf returns the page of records that are in no table, as [Table.List] does, except for the filters.
func PageOf[T any](all []Record[T], q Query, id func(*T) string) ([]Record[T], error) {
	field, down := q.order()
	first, after, err := q.after()
	if err != nil {
		return nil, err
	}
	sign := 1
	if down {
		sign = -1
	}
	of := func(r *Record[T]) key { return keyOf(field, r, id(&r.Value)) }
	out := slices.DeleteFunc(slices.Clone(all), func(r Record[T]) bool {
		return !strings.HasPrefix(id(&r.Value), q.Prefix) || after && sign*of(&r).compare(first) <= 0
	})
	slices.SortFunc(out, func(x, y Record[T]) int { return sign * of(&x).compare(of(&y)) })
	return out[:min(len(out), q.Limit)], nil
}
