package catalog

import "sync"

// sideChannel is the channel of the side on which writers notify nodes.
const sideChannel = "catalog"

// wakers are the nodes of this process, which are notified directly: the keys are channels of
// capacity 1.
type wakers struct{ channels sync.Map }

func (w *wakers) add(ch chan<- struct{}) (remove func()) {
	w.channels.Store(ch, nil)
	return func() { w.channels.Delete(ch) }
}

// all notifies every node.
func (w *wakers) all() {
	for ch := range w.channels.Range {
		nudge(ch.(chan<- struct{}))
	}
}

// nudge sends to a channel of capacity 1, unless it is full.
func nudge(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
