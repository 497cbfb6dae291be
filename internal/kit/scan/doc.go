// Package scan reads JSON and server-sent events that arrive in pieces, without keeping
// them: for what has to be known about a body that passes.
//
// # Invariants
//
//   - What is found does not depend on how the input is cut into pieces.
//   - Memory is bounded: a [JSON] scanner has less than 1 KB whatever it reads, and so have
//     [Events] and [Match]. Nothing is allocated for a piece.
//   - No input makes it panic. What is not JSON is [JSON.Broken], and then nothing more
//     is found.
//
// # What it does not do
//
// It decodes into no types, and does not check that text is valid UTF-8. Whole inputs that
// have to be refused with a good error are read by package strict, and by the decision API.
package scan
