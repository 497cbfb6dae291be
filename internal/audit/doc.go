// Package audit keeps the record of what was decided: every request that was refused,
// held or would have been refused, and a sample of those that passed.
//
// A decision is written down by a [Recorder], which never waits: it has a place in
// memory for so many events, and what does not fit is dropped and counted. From there
// batches go to the database or, while that is away, to a spool on disk, from which they
// follow in their order. Each event has the id of its decision, and is kept once however
// often it is written.
//
// # What holds
//
//   - A decision takes no longer for being recorded than it takes to copy it.
//   - What was written to the database or synced to the spool is not lost, and is never
//     there twice. (SQLite may lose its last commits when the machine loses power, not when
//     the process dies.) What a process that is killed loses is what it has recorded in the
//     last two intervals of the [Pipeline].
//   - Totals are right: an event that stands for others says for how many.
//   - What the settings say must not be kept of an address does not leave memory.
//
// # What it refuses to do
//
// It decides nothing and limits nothing, and no one waits for it. It does not answer
// questions that would have it read all events: there are roll-ups for those.
package audit
