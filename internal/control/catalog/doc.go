// Package catalog stores rules, tiers, tenants, users, API keys, exemptions and bans, and
// the tokens and sessions of those who may change them: in PostgreSQL for many nodes, or
// in SQLite for one machine.
//
// A [Catalog] is for writers. Each record has a version, and an update names the version
// that it replaces. A write is checked against all rules and tiers, logged as a change, and
// makes a new revision, in one transaction. A [Node] is for a process that decides
// requests: it follows the revisions, puts each new [Snapshot] of rules and lists to use,
// and looks up and caches users and keys, of which there may be millions.
//
// A [Document] is the same content as a file. [Catalog.Apply] makes the database match a
// document, and [Catalog.Export] writes one. [Catalog.Changes] lists who changed what,
// [Catalog.Revert] undoes a revision, and [Catalog.Trial] shows what a write would do.
//
// # How a node follows
//
// The database has a revision, which each write raises, and a random stamp of that write.
// A node knows its position: the last revision and stamp that it has followed. It looks
// when it is notified and at every poll, and reads, in one transaction, what the log of
// changes has after its position. If rules or lists have changed it reads them, compiles a
// snapshot and puts it to use; of users, keys and tenants it drops the changed ones from
// its cache. If the log has a gap, everything is read anew.
//
// If the log does not have its position, the database has another history: it was emptied,
// restored from a backup, or is another one. The node refuses it, when it starts as when it
// runs, and uses nothing of it, until someone accepts it: [ApplyOptions].
//
// With a replica of the database, [Options], a node reads there what the replica has of its
// history, and everything else from the database: see replica.go.
//
// # What holds
//
//   - Rules that do not compile are not stored. A write that fails changes nothing.
//   - An update never overwrites a version that its writer has not seen: [ConflictError].
//   - A notification only says that it is time to look. Its content is ignored, and the
//     poll finds what was not notified.
//   - A snapshot is of one revision. To look again at the same revision changes nothing. A
//     snapshot that cannot be used (it does not compile, or is of another history) changes
//     nothing either, and the node reports the problem.
//   - A start is like a look: what is on disk is the position that the node has followed.
//   - Decisions do not wait for the database: what is known is used while it is down, and
//     the last good rules are on disk for a start without it.
//   - The text of an API key, a token or a session is returned once, when it is made, and
//     is in no table, no log and no error.
//
// # What it does not do
//
// It decides no requests and counts no limits. It does not notice rows that are changed
// with other tools until the revision is raised.
package catalog
