// Package capture writes files with all that the decisions of a node depended on, for a bounded time, and reads them.
//
//	s, err := capture.Start(capture.Options{Engine: e, Path: path, For: 10 * time.Minute, MaxBytes: 1 << 30, ...})
//	<-s.Done() // after that time, at that size, or after s.Stop
//	r, err := capture.Open(path)
//	for record, err := range r.Records() { ... }
//
// A file has the rules, each decision with its facts and its verdict, and each call to the store with its asks and answers, also
// those of no decision. Package exact decides them again.
//
// # What holds
//
//   - No decision waits for a file. A [Session] encodes into buffers in memory, and writes them in the background. What does not
//     fit is left out and counted: see [Summary].Lost.
//   - A file that is there is whole. It is written under another name, and renamed.
//   - The file is never larger than its bound, and leaves room on the disk.
//   - It has no API keys and no tokens. Of headers and claims, it has those that rules look at. [Start] fails if one of these
//     headers is for credentials.
//   - It has paths and addresses as they are, whatever is recorded otherwise, but no query.
//   - Reading takes memory for one record. A file that was changed is an error, and nothing worse.
//
// # What it does not do
//
// It knows no order among calls of the same microsecond, or of those that overlap. It does not say what other nodes have counted:
// their files do.
package capture
