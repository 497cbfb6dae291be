// Package catalog is the database of rules, tiers, tenants, users, API keys,
// exemptions and bans, and of the tokens and sessions of those who may change them:
// PostgreSQL for many nodes, or SQLite for one machine.
//
// A [Catalog] is what is written: each thing has a version, and who writes says which
// one was read; every write is checked as a whole, noted in the log of changes, and
// raises the revision, all in one transaction. A [Node] is what is served: it follows
// the revision, hands over each new [Snapshot] of rules and lists, and looks up users
// and keys, of which there may be millions, one by one and remembers them.
//
// The same things can be written in a file: a [Document] is what both have in common,
// and what both are checked by. [Catalog.Apply] makes the database what a document
// says, and [Catalog.Export] returns it as one. [Catalog.Changes] tells what has become of
// it, by whom, [Catalog.Revert] undoes what a revision has changed, and [Catalog.Trial]
// says what a write would do.
//
// # What holds
//
//   - What does not compile is not stored. A write that fails leaves nothing behind.
//   - An update never overwrites what its writer has not seen: [ConflictError].
//   - A notification says no more than that it is time to look; what is read is decided
//     by the revision alone. Nothing that a notification holds is believed.
//   - A snapshot is of one revision, whole. One that is of no use (it does not compile,
//     or the revision has gone back) changes nothing, and the node says so.
//   - The data plane does not wait for the database: what is known is used while the
//     database is away, and rules are kept on disk for a start without it.
//   - The text of an API key, of a token and of a session is returned once, when it is
//     made, and is in no table, no log and no error.
//
// # What it refuses to do
//
// It decides nothing and counts no limits. It keeps no rows that others have written
// behind its back: what is changed with a database's own tools is noticed once the
// revision is raised, and not before.
package catalog
