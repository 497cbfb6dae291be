package disk_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stintdev/stint/internal/kit/disk"
)

// TestFree asks about a directory that is there, and about one that is not.
func TestFree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	free, ok := disk.Free(filepath.Join(dir, "file"))
	if runtime.GOOS == "linux" && (!ok || free <= 0) {
		t.Errorf("%d, %v", free, ok)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, again := disk.Free(filepath.Join(dir, "file")); again != ok {
		t.Error("it does not know about a file that is there")
	}
	if free, ok := disk.Free(filepath.Join(dir, "none", "file")); ok {
		t.Errorf("%d bytes are free in a directory that does not exist", free)
	}
}
