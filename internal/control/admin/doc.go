// Package admin is the API by which people and their programs look after Stint, and the
// dashboard that is built on it: rules, tiers, users, keys, what was decided, and what
// is going on.
//
// [API] is one handler: the dashboard at /, and the API at /admin/v1, which its own
// document describes at /admin/v1/openapi.json. Operations are registered with the role
// that they want; one without cannot be. What a client sends is bound and checked before
// an operation sees it, and whatever an operation returns as an error is told as
// application/problem+json, in one place.
//
// # What holds
//
//   - Nothing is answered without credentials but the dashboard's files, the document
//     and the attempt to log in.
//   - A session is a cookie that no script can read, and no other site can use it.
//   - Nothing secret is answered twice: the text of a key or a token is told when it is
//     made. Errors have no SQL, no paths and no stacks in them.
//   - A write says which version it has seen; what has changed since is a conflict.
//   - Bodies, lists, streams, and the time that an answer takes, have bounds.
//
// # What it refuses to do
//
// It decides nothing, and it is not in the way of decisions: it reads what the engine,
// the catalog and the record have, and writes to the catalog alone, but for resets.
// It opens no listener. It has no accounts and no passwords: tokens are all there is.
package admin
