// Package admin is the API that operators and their programs use, and the dashboard that
// is built on it: rules, tiers, users, keys, recorded decisions, and live traffic.
//
// [API] is one handler: the dashboard at /, and the API at /admin/v1, which is described
// at /admin/v1/openapi.json. Every operation is registered with a role. What a client
// sends is bound and checked before the operation sees it, and every error becomes
// application/problem+json, in one place.
//
// Requests are bound by the package itself (operation.go, bind.go), not by a framework:
// unknown parameters and fields are rejected with a suggestion, JSON is read by the same
// strict decoder as config files, and slow bodies and streams have deadlines of their
// own. A framework beside that would be linked only to print the OpenAPI document, as
// huma once was. A test generates the document instead, from the operations and the
// types of their inputs and outputs, and the binary embeds it as a file.
//
// # Invariants
//
//   - Only the dashboard's files, the document, and logging in need no credentials.
//   - A session is a cookie that scripts cannot read and other sites cannot use.
//   - Secrets are shown once: the text of a key or a token, when it is created. Errors
//     contain no SQL, paths or stacks.
//   - A write names the version that its author has seen. If the stored version is
//     another, the write is a conflict.
//   - Bodies, lists, streams and response times are bounded.
//
// # What it does not do
//
// It makes no decisions about requests and does not slow them down: it reads from the
// engine, the catalog and the record, and writes only to the catalog, except for resets
// of counters. It opens no listener. It has no accounts and no passwords, only tokens.
package admin
