// Program costs limits requests whose cost is known only when they are done, such as the
// tokens of a language model: 10,000 tokens an hour for each user.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"strings"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/memstore"
)

func main() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	handler, err := newHandler(store, repeat)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("localhost:8000", handler))
}

// model answers a prompt, and says how many tokens that took: at most maxTokens.
type model func(ctx context.Context, prompt string) (answer string, tokens int64, err error)

const maxTokens = 1000

// repeat is a model that repeats the prompt.
func repeat(_ context.Context, prompt string) (answer string, tokens int64, err error) {
	return prompt, min(int64(len(strings.Fields(prompt))), maxTokens), nil
}

func newHandler(store stint.Store, ask model) (http.Handler, error) {
	limiter, err := stint.New(store, stint.Options{Limit: stint.PerHour(10_000), Name: "tokens"})
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user := "user:" + r.Header.Get("X-User-Id") // set by a gateway that has authenticated the user
		d, err := limiter.TakeN(r.Context(), user, maxTokens)
		switch {
		case err != nil:
			http.Error(w, "limits cannot be checked", http.StatusServiceUnavailable)
			return
		case !d.Allowed:
			http.Error(w, fmt.Sprintf("over the limit; retry in %v", d.RetryAfter), http.StatusTooManyRequests)
			return
		}
		answer, tokens, err := ask(r.Context(), r.FormValue("prompt"))
		// The client may have left, and its charge is changed all the same.
		ctx := context.WithoutCancel(r.Context())
		if err != nil {
			if _, err := limiter.Refund(ctx, user, d); err != nil {
				log.Print("refund: ", err) // the user stays charged
			}
			http.Error(w, "no answer", http.StatusBadGateway)
			return
		}
		if _, err := limiter.Amend(ctx, user, d.Charge(), tokens-maxTokens); err != nil {
			log.Print("amend: ", err) // the user stays charged with maxTokens
		}
		fmt.Fprintln(w, answer)
	}), nil
}
