package capture

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// Keeper has the captures of a node: one at a time, and the file of the last. It is safe for concurrent use.
type Keeper struct {
	path string

	mu      sync.Mutex
	current *Session // nil: there was none
	closed  bool
}

// File is the name of the file of the last capture.
const File = "capture.stint"

var (
	// ErrRunning means that there is a capture already.
	ErrRunning = errors.New("a capture is under way on this node: stop it first")
	// ErrNone means that there is none.
	ErrNone = errors.New("there is no capture")
)

// NewKeeper returns a keeper, with its files in a directory, which it creates when there is something to keep. What a process that was
// killed has left there is removed.
func NewKeeper(dir string) (*Keeper, error) {
	k := &Keeper{path: filepath.Join(dir, File)}
	if _, err := os.Stat(k.path + Part); err != nil {
		return k, nil //nolint:nilerr // there is none
	}
	f, err := openPart(k.path)
	if errors.Is(err, ErrRunning) {
		return k, nil // it is that of another process, which writes it
	}
	if err == nil {
		err = errors.Join(os.Remove(f.Name()), f.Close())
	}
	return k, err
}

// Start begins a capture. Its file takes the place of the last one when it has ended. The error is ErrRunning if there is one already.
func (k *Keeper) Start(o Options) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || k.running() {
		return ErrRunning
	}
	if err := os.MkdirAll(filepath.Dir(k.path), 0o700); err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	o.Path = k.path
	s, err := Start(o)
	if err == nil {
		k.current = s
	}
	return err
}

func (k *Keeper) running() bool {
	if k.current == nil {
		return false
	}
	select {
	case <-k.current.Done():
		return false
	default:
		return true
	}
}

// Current returns the last capture of this process, whether it is under way, and whether there is a file.
func (k *Keeper) Current() (s *Session, running, file bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, err := os.Stat(k.path)
	return k.current, k.running(), err == nil
}

// Stop ends the capture that is under way, and waits until its file is there. The error is ErrNone if there is none.
func (k *Keeper) Stop(ctx context.Context, reason string) error {
	k.mu.Lock()
	s, running := k.current, k.running()
	k.mu.Unlock()
	if !running {
		return ErrNone
	}
	return s.Stop(ctx, reason)
}

// Open opens the file of the last capture. The error is ErrNone if there is none.
func (k *Keeper) Open() (*os.File, error) {
	f, err := os.Open(k.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	}
	return f, err
}

// Remove deletes the file of the last capture. The error is ErrNone if there is none.
func (k *Keeper) Remove() error {
	err := os.Remove(k.path)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNone
	}
	return err
}

// Close ends the capture that is under way, and begins no more.
func (k *Keeper) Close(ctx context.Context) {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	_ = k.Stop(ctx, EndedByNode) // what can be written is
}
