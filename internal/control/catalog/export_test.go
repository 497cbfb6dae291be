package catalog

import (
	"database/sql"
	"math"
)

// DB returns what a catalog writes with: a database in memory has no other way in.
func DB(c *Catalog) *sql.DB { return c.db }

// SQL returns what is asked for a page of a table.
func (t *Table[T]) SQL(q Query) (query string, args []any) {
	where, args, _ := q.where(t.c, &t.kind)
	return "SELECT id, body FROM " + t.table + " " + where, args
}

// SQL returns what is asked for a page of the log of changes.
func (q ChangeQuery) SQL() (query string, args []any) { return q.sql(math.MaxInt64/2, 0, nil) }

// ReplicaWait is how long a change is waited for.
const ReplicaWait = replicaWait

// Sights is a sight by revisions, and the position of a node.
type Sights struct {
	From, Database, Replica                int64
	Unread, Unconfirmed, Away, Unfit, Late bool
}

// Choose returns where is read.
func (v Sights) Choose(patient bool) string {
	s := sight{database: mark{Revision: v.Database}, replica: replicaState{mark: mark{Revision: v.Replica}}, late: v.Late}
	if v.Away {
		s.away = ErrUnavailable
	}
	if v.Unfit {
		s.unfit = ErrUnavailable
	}
	from := position{mark: mark{Revision: v.From}, unread: v.Unread, unconfirmed: v.Unconfirmed}
	return map[choice]string{readNothing: "nothing", readDatabase: "database", readReplica: "replica", awaitReplica: "wait"}[s.choose(from, patient)]
}
