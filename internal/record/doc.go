// Package record stores decisions: every request that was denied, held or would have been
// denied, and a sample of those that passed.
//
// A [Recorder] buffers events in memory and never waits: if the buffer is full, it drops events
// and counts them. A [Pipeline] writes them in batches to the [Store] in a database or, while
// that is down, to a [Spool] on disk, from which they are written later, in order. Each event
// has the id of its decision, and is stored once however often it is written. [Live] and [Tap]
// show current decisions.
//
// A [Book] adds up what requests have used under rules with a meter, and writes that to the
// Store: each settlement once, and under the name [Other] beyond its bound. A [Settlement] of an
// event that is recorded is also stored by itself, by the id of the event, and found with it.
//
// Roll-ups and the archive are packages of their own, which import this one.
//
// # What holds
//
//   - Recording a decision takes no longer than copying it.
//   - Events in the database or the spool are not lost, and never stored twice. (SQLite may
//     lose its last commits when the machine loses power, not when the process dies.) A
//     process that is killed loses the events of the last two intervals of the [Pipeline].
//   - Totals are right: an event that stands for several decisions has their number.
//   - A client costs few rows, however often it is denied in a second by a rule. (What it is
//     granted may cost more: a settlement whose event is one that another stands for is stored,
//     as far as the bound of the [Book] goes, but not found.)
//   - On SQLite the record is a file of its own, and leaves room on the disk for others.
//   - The parts of addresses that must not be stored, by the settings, never leave memory.
//
// # What it does not do
//
// It does not answer queries for which it would have to read all events: roll-ups are for
// those.
package record
