package catalog

import "sync"

// sideChannel is the channel of the side on which writers notify nodes.
const sideChannel = "catalog"

// wakers are the nodes of this process, which are notified directly.
type wakers struct {
	mu   sync.Mutex
	each map[chan<- struct{}]bool
}

// add registers a channel of capacity 1.
func (w *wakers) add(ch chan<- struct{}) (remove func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.each == nil {
		w.each = map[chan<- struct{}]bool{}
	}
	w.each[ch] = true
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.each, ch)
	}
}

// all notifies every node.
func (w *wakers) all() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ch := range w.each {
		nudge(ch)
	}
}

// nudge sends to a channel of capacity 1, unless it is full.
func nudge(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
