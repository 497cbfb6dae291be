// Package disk tells how much room a filesystem has, and locks files.
//
// It answers for directories and files that exist, on systems that have statfs. Otherwise it
// does not know, and says so: callers then do as if there was room, and get the error of the
// write.
package disk

import "path/filepath"

// Free returns how many bytes this user can still write to the filesystem of a file, which
// need not exist yet, but its directory must. It reports false if that is not known.
func Free(file string) (bytes int64, ok bool) { return free(filepath.Dir(file)) }
