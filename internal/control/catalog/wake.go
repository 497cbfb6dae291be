package catalog

import "sync"

// sideChannel is where nodes tell each other by the side that there is something new.
const sideChannel = "catalog"

// wakers are the nodes of this process, which need no database to hear of each other.
type wakers struct {
	mu   sync.Mutex
	each map[chan<- struct{}]bool
}

// add has a channel, which has room for one, told of what is new.
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

func (w *wakers) all() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ch := range w.each {
		nudge(ch)
	}
}

// nudge tells a channel that has room for one. If there is something in it, that will do.
func nudge(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
