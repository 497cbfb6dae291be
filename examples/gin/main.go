// Program gin limits an engine of gin: 100 requests a minute from each address.
package main

import (
	"log"
	"net/http"

	"github.com/gin-gonic/gin"

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
	router := gin.New()
	router.Use(wrap(limit))
	router.GET("/hello", func(c *gin.Context) {
		c.String(http.StatusOK, "hello\n")
	})
	return router, nil
}

// wrap turns a middleware of net/http into one of gin.
func wrap(middleware func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		passed := false
		next := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			passed = true
			c.Request = r
			c.Next()
		})
		middleware(next).ServeHTTP(c.Writer, c.Request)
		if !passed {
			c.Abort()
		}
	}
}
