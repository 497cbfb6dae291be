// Package linkpb holds the messages between regions, generated from link.proto by make proto. Only
// package link uses them: what it hands to others are the types of stint and gossip.
package linkpb
