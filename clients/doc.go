// Package clients has the clients of the decision API for other languages: directory python, and directory js. In Go it
// is httplimit.Client.
//
// They have no dependencies, the same calls, and the same behaviour when the server is away, which docs/clients.md says.
// Their types are made from httplimit/openapi.json by generate.py; after a change there, run
//
//	go test ./clients -update
//
// The tests of this package check that the types are current. Those of internal/e2e run the tests that the clients have
// in their own languages, against the program.
package clients
