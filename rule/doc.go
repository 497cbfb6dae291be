// Package rule says which limits apply to a request. People write rules in a file
// ([File]). [Compile] checks them and returns a [Set], which finds the rules that apply to
// a request ([Set.Match]) and turns them into asks for a store ([Set.Asks]).
//
// It does not identify clients, count, or decide: it gets what is known about a
// request as [Attrs], and returns asks.
//
// Invariants:
//
//   - Every rule that matches applies, except that of the rules of a group only
//     the best applies: by priority, by how specific it is, and by name. The
//     log_only rules of a group compete only with each other. The order of rules
//     in a file does not matter.
//   - A rule without paths is less specific than any rule with paths. An exact
//     path is more specific than one with * or **; then more literal segments win,
//     then more segments, then no ** at the end, then more conditions.
//   - Spellings of a path that mean the same to every server are one path
//     ([CleanPath]). Where servers disagree, the rules for every reading apply. Letters
//     of another case are another path, unless [File.Case] says otherwise.
//   - A rule does not match a request that lacks something the rule counts by, so
//     strangers never share a counter. A header that anyone may send names a
//     counter only together with the client's address.
//   - Different counters have different keys, whatever clients send. A key has at
//     most a few hundred bytes for each thing that is counted by, and never the
//     value of a header.
//   - No limit holds a request for longer than its rule says.
//   - A Set never changes. Matching takes no lock and allocates nothing, unless a
//     path is not clean. Its time hardly depends on the number of rules: it follows
//     the path, the address, the tier and the headers, and does not walk the rules.
package rule
