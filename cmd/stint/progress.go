package main

import (
	"fmt"
	"sync"
	"time"
)

// waits calls do, and shows on a terminal what it waits for, and for how long, once that takes longer than a second.
func (t *terminal) waits(what string, do func() error) error {
	defer t.waiting(what)()
	return do()
}

// waiting shows the same until the function that it returns is called, which may be called again.
func (t *terminal) waiting(what string) (end func()) {
	screen := t.screen()
	if screen == nil {
		return func() {}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for n := 1; ; n++ {
			select {
			case <-stop:
				if n > 1 {
					fmt.Fprint(screen, clearLine)
				}
				return
			case <-ticker.C:
				fmt.Fprintf(screen, clearLine+"%s, %d s", what, n)
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(stop)
		<-stopped
	})
}
