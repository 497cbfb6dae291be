// Program streams limits how many streams each user has open at once: three.
package main

import (
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/memstore"
)

func main() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	handler, err := newHandler(store)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("localhost:8000", handler))
}

func newHandler(store stint.Store) (http.Handler, error) {
	limit, err := stint.ParseLimit("3/30s concurrency")
	if err != nil {
		return nil, err
	}
	limiter, err := stint.New(store, stint.Options{Limit: limit, Name: "streams"})
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user := "user:" + r.Header.Get("X-User-Id") // set by a gateway that has authenticated the user
		release, d, err := limiter.Hold(r.Context(), user)
		switch {
		case err != nil:
			http.Error(w, "limits cannot be checked", http.StatusServiceUnavailable)
			return
		case !d.Allowed:
			http.Error(w, "too many streams are open", http.StatusTooManyRequests)
			return
		}
		defer release()
		stream(w, r)
	}), nil
}

// stream counts the seconds, until the client leaves.
func stream(w http.ResponseWriter, r *http.Request) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for seconds := 0; ; seconds++ {
		fmt.Fprintln(w, seconds)
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}
