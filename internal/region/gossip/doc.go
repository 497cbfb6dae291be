// Package gossip keeps the counters of several regions together: each region counts by itself, tells the
// others what it has admitted, and they charge it at the instant at which it was used.
package gossip
