package catalog

import (
	"database/sql"
	"math"
)

// DB returns what a catalog writes with: a database in memory has no other way in.
func DB(c *Catalog) *sql.DB { return c.db }

// Until returns up to which revision a node knows that nothing has changed of the rules and
// lists that it has read.
func (n *Node) Until() int64 {
	n.turn.Lock()
	defer n.turn.Unlock()
	return n.loaded.until.Revision
}

// SQL returns what is asked for a page of a table.
func (t *Table[T]) SQL(q Query) (query string, args []any) {
	where, args := q.where(&t.kind)
	return "SELECT id, body FROM " + t.table + " " + where, args
}

// SQL returns what is asked for a page of the log of changes.
func (q ChangeQuery) SQL() (query string, args []any) { return q.sql(math.MaxInt64/2, 0) }
