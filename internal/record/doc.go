// Package record keeps the record of what was decided: every request that was denied, held or
// would have been denied, and a sample of those that passed.
//
// A [Recorder] writes decisions down and never waits: it has room in memory for so many
// events, and counts those that it has to drop. A [Pipeline] takes them in batches to the
// [Store] in a database or, while that is away, to a [Spool] on disk, from which they follow
// in their order. Each event has the id of its decision, and is kept once however often it is
// written. [Live] and [Tap] show what is being decided now.
//
// Roll-ups and the archive are packages of their own, which import this one.
//
// # What holds
//
//   - Recording a decision takes no longer than copying it.
//   - What was written to the database or synced to the spool is not lost, and is never
//     there twice. (SQLite may lose its last commits when the machine loses power, not when
//     the process dies.) A process that is killed loses what it has recorded in the last two
//     intervals of the [Pipeline].
//   - Totals are right: an event that stands for others says for how many.
//   - What the settings say must not be kept of an address does not leave memory.
//
// # What it refuses to do
//
// It decides nothing and limits nothing, and no one waits for it. It does not answer
// questions for which it would have to read all events: there are roll-ups for those.
package record
