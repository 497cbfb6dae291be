// Program nethttp limits a handler of net/http: 100 requests a minute from each address.
package main

import (
	"fmt"
	"log"
	"net/http"

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
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "hello")
	})
	return limit(mux), nil
}
