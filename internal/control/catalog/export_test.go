package catalog

import (
	"database/sql"
	"math"
)

// DB returns what a catalog writes with: a database in memory has no other way in.
func DB(c *Catalog) *sql.DB { return c.db }

// SQL returns what is asked for a page of a table.
func (t *Table[T]) SQL(q Query) (query string, args []any) {
	where, args := q.where(&t.kind)
	return "SELECT id, body FROM " + t.table + " " + where, args
}

// SQL returns what is asked for a page of the log of changes.
func (q ChangeQuery) SQL() (query string, args []any) { return q.sql(math.MaxInt64/2, 0) }
