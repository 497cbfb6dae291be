// Package e2e holds tests of the whole: the program as people run it, with the
// clients and proxies that they have.
//
// A test starts the stint that it has built, as a process, and what it needs beside it:
// nginx, Caddy, Redis, PostgreSQL, envoyproxy/ratelimit. It talks to them with curl,
// h2load and sockets, and uses the dashboard in Chromium. The configurations of nginx and
// Caddy are those of the documents, so that what is documented is what is run.
//
// The tests refuse to skip: where a program is missing they fail, and say what to
// install. They run on Linux only.
//
// Invariants:
//
//   - Everything listens on 127.0.0.1 alone, on ports of its own.
//   - A process and its files are gone when its test has ended. When the test process
//     itself dies, however it dies, the kernel kills what it has started.
//   - Every stint is told to stop at the end of its test, and must do so with exit
//     code 0, soon, and without a panic in its log.
package e2e
