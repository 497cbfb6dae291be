// Program echo limits a router of echo: 100 requests a minute from each address.
package main

import (
	"log"
	"net/http"

	"github.com/labstack/echo/v5"

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
	router := echo.New()
	router.Use(echo.WrapMiddleware(limit))
	router.GET("/hello", func(c *echo.Context) error {
		return c.String(http.StatusOK, "hello\n")
	})
	return router, nil
}
