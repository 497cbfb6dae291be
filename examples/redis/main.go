// Program redis limits a handler of net/http by counters in Redis, so that all its
// processes share the limit: 100 requests a minute from each address. While Redis cannot
// be reached, each process counts by itself.
package main

import (
	"fmt"
	"log"
	"net/http"

	"github.com/redis/go-redis/v9"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/httplimit"
	"github.com/stintdev/stint/layer"
	"github.com/stintdev/stint/memstore"
	"github.com/stintdev/stint/redisstore"
)

func main() {
	store, err := newStore("redis://localhost:6379")
	if err != nil {
		log.Fatal(err)
	}
	handler, err := newHandler(store)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("localhost:8000", handler))
}

func newStore(url string) (stint.Store, error) {
	redis, err := redisstore.Open(url, redisstore.Options{})
	if err != nil {
		return nil, err
	}
	local, err := memstore.New(memstore.Options{})
	if err != nil {
		return nil, err
	}
	return layer.New(redis, layer.Options{Fallback: &layer.FallbackOptions{Local: local}})
}

// newStoreWith counts with a client that the program has for other things, too.
func newStoreWith(addr string) (*redis.Client, stint.Store, error) {
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	store, err := redisstore.New(client, redisstore.ClientOptions{Prefix: "rl"})
	return client, store, err
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
