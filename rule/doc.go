// Package rule says which limits a request has to pass. People write rules in a
// file ([File]); [Compile] checks them and makes a [Set], which finds the rules
// that apply to a request ([Set.Match]), and what they ask of a store ([Set.Asks]).
//
// It does not find out who a client is, nor does it count, decide or answer: it
// gets what is known of a request as [Attrs], and gives back asks.
//
// What holds:
//
//   - Every rule that matches applies, but of those that share a group only one,
//     the best by priority, by how specific it is, and by name. Those that are
//     log_only have no part in that, and one of them applies, too. The order of
//     rules in a file makes no difference.
//   - How specific: a rule without paths is less so than any with. An exact path is
//     more so than any with * or **; then the more literal segments, the more
//     segments, and no ** at the end; then the more conditions.
//   - Spellings of a path that mean the same to every server are one path
//     ([CleanPath]). Where servers do not agree, the rules for all that a path may
//     mean apply.
//   - A rule that counts by something that a request does not have does not match
//     it, so strangers never share a counter. A header that comes from anyone names
//     a counter only together with the client's address.
//   - Different counters have different keys, whatever clients send, and no key is
//     longer for it than a few hundred bytes for each thing that is counted by. No
//     key holds the value of a header.
//   - No limit holds a request for longer than its rule says.
//   - A Set never changes. Matching takes no lock and allocates nothing, unless a
//     path is not clean, and hardly takes longer the more rules there are: it follows
//     the path, the address, the tier and the headers, and does not walk rules.
package rule
