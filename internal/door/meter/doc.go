// Package meter counts what a response has used while it passes: bytes, seconds, the
// number in a header, or a number in its JSON.
//
// A [Set] of meters is compiled once, with the rule that names them. For each response it
// makes a [Response], which is told the pieces of the body and, at the end, what only the
// caller knows. [Body] is the part that reads JSON: package llm builds on it.
//
// # Bounds
//
//   - A body is not held back and not copied. Nothing is allocated for a piece.
//   - Meters of bytes, seconds and headers need about 100 bytes for each response, those of
//     JSON 3 KB, and 56 KB if it is compressed: 32 KB of that is the window of deflate. A test
//     measures this.
//   - At most [MaxDecoded] bytes of a body are decoded, and at most [MaxRatio] times what was
//     sent. JSON may be nested [scan.MaxDepth] deep.
//   - Units are from 0 to [scan.MaxNumber]. Fractions are rounded up, negative numbers are 0.
//
// # Never free
//
// What cannot be read is estimated, and [Units] say why: a JSON number as one unit for every
// [BytesPerUnit] bytes of the body, a header as one unit.
//
// # What it does not do
//
// It reads no clock and starts no goroutine of its own: decoders are coroutines, which run
// only during a Write ([Decoder] says why). It does not decode br and zstd, whose windows of
// up to 16 MB would break the bound on memory. Ask targets for gzip, or for no encoding.
package meter
