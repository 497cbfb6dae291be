// Package e2e tests the whole program, with real clients, proxies and browsers.
//
// A test builds stint and starts it as a process, together with the programs that it
// needs: nginx, Caddy, Redis, PostgreSQL, envoyproxy/ratelimit. It uses curl, h2load and
// sockets, the official clients of language models for Node (directory sdk), and the
// dashboard in Chromium. The configurations of nginx and Caddy are those in the documents,
// so that these are tested, too.
//
// If a program is missing, a test fails and says what to install; it is never skipped.
// The tests run on Linux only.
// What kills, floods or starves, and what judges times or memory, has the build tag torture.
//
// Invariants:
//
//   - Everything listens on 127.0.0.1 only, on ports of its own.
//   - Processes and their files are removed at the end of their test. If the test process
//     dies, in whatever way, the kernel kills what it has started.
//   - Every stint is stopped at the end of its test, and must exit soon with code 0 and
//     without a panic in its log.
package e2e
