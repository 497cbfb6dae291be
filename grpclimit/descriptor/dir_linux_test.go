package descriptor_test

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stintdev/stint/grpclimit/descriptor"
)

// asNobody has the test open files as a user who owns none of them: root may read everything.
func asNobody(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	const nobody = 65534
	runtime.LockOSThread() // it is this thread's user
	if err := syscall.Setfsuid(nobody); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Setfsuid(0); err != nil {
			t.Error(err)
		}
		runtime.UnlockOSThread()
	})
}

// TestReadDirDenied checks that what this process may not read is named, such as lost+found
// in the root of a volume.
func TestReadDirDenied(t *testing.T) {
	t.Parallel()
	dir := makeTree(t, "a.yaml", "b.yaml", "lost+found/")
	for name, mode := range map[string]os.FileMode{"a.yaml": 0, "b.yaml": 0o644, "lost+found": 0, ".": 0o755, "..": 0o755} {
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	asNobody(t)
	files, skipped, err := descriptor.ReadDir(dir, descriptor.DirOptions{})
	if err != nil || len(files) != 1 || len(skipped) != 2 || skipped[0].Why != "permission denied" || skipped[1].Why != "permission denied" {
		t.Errorf("%s, %s, %v", files, skipped, err)
	}
}
