//go:build !scale

package record

// Bounds are small here, so that few events are enough to reach them.
func init() { page, scanned, scannedApart, maxStreaks = 100, 2000, 200, 500 }
