// Program chi limits a router of chi: 100 requests a minute from each address.
package main

import (
	"fmt"
	"log"
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/httplimit"
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
	limit, err := httplimit.Limit(store, "100/1m", httplimit.ByIP)
	if err != nil {
		return nil, err
	}
	router := chi.NewRouter()
	router.Use(limit)
	router.Get("/hello", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "hello")
	})
	return router, nil
}
