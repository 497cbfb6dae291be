// Package link is the wire between regions. Each node keeps one gRPC stream open to each other region: a
// [Link]. A [Server] is the other end of those that nodes of other regions have opened. A stream carries
// batches of what was admitted and their acknowledgements, takes, adjustments and resets of central
// counters with their answers, and pings.
//
// # Handshake
//
// The server begins with a random nonce. The client answers with who it is, which regions it knows with
// which weights, and a nonce of its own, sealed by HMAC-SHA256 with the secret that the regions share; the
// server answers in the same way, with the same secret. So both have proved that they know it, and a recorded
// stream is worth nothing. A server may accept several secrets, of which clients use the first, so that one can
// be replaced. A stream that exists goes on, whatever becomes of its secret and certificates. If the client has shown a certificate that the server's TLS has verified, the region must
// be one of its DNS names or its common name; then there need be no secret. Without either, streams are
// refused. A secret alone protects the handshake and not what follows it: outside of private networks
// there must be TLS, too.
//
// Streams are refused between nodes that do not know the same regions with the same weights: their
// parts of a limit would not add up.
//
// # What it does not do
//
// It keeps nothing beyond a stream. What was not acknowledged when a stream ends may or may not have been
// received, and its sender decides what to send again ([Options.Connected]). A call that was cut may or may
// not have been applied, and is not repeated. It does not judge instants and amounts of batches: these are
// what the peer says, and the [Receiver] has to bound them.
//
// # Bounds
//
//   - A message has at most [MaxMessage] bytes, a batch [MaxEntries] entries, and a call [MaxAsks] asks. A
//     batch that was compressed has at most MaxMessage bytes afterwards.
//   - A stream has at most [MaxBatches] batches without an acknowledgement, and [MaxCalls] calls without an
//     answer, of [MaxCallBytes] together. Beyond that [Link.Send] returns [ErrFull], and calls fail at once.
//     A server ends the stream of a client that does not keep to this, so no receiver, however slow, makes
//     either side grow.
//   - A limit is sent once as text, and then as a number. At most 4096 limits have a number.
//   - A server has at most [MaxStreams] streams, and one for each node of another region: a new one
//     replaces the old. Connections that have not proved who they are do not count: of these there are at most
//     [MaxHandshakes], and the oldest makes room for another.
//   - A handshake takes at most 5 s. Both sides ping every second, and a stream on which nothing has
//     arrived for 5 s is over.
//   - A link that is down connects again after a random time that doubles from 100 ms to 5 s.
package link
