package catalog_test

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/test/wait"
)

// TestAnswers checks how many answers are kept, and for how long.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for name, url := range emptyURLs(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			c, err := catalog.Open(url, catalog.Options{Now: func() time.Time { mu.Lock(); defer mu.Unlock(); return now }, Patience: patience})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			ctx := t.Context()
			if _, err := c.Up(ctx, 0); err != nil {
				t.Fatal(err)
			}
			once := func(owner string, n int) *catalog.Once {
				return catalog.NewOnce(owner, "a text of the client "+strconv.Itoa(n), []byte("request"))
			}
			count := func(want int) {
				t.Helper()
				var got int
				if err := catalog.DB(c).QueryRowContext(ctx, "SELECT count(*) FROM stint_answers").Scan(&got); err != nil || got != want {
					t.Errorf("there are %d answers, want %d: %v", got, want, err)
				}
			}
			const most = 1000
			answer := func(from, to int) {
				t.Helper()
				for i := from; i < to; i++ {
					mu.Lock()
					now = now.Add(time.Second)
					mu.Unlock()
					if err := c.Finish(ctx, once("one", i), []byte("answer "+strconv.Itoa(i))); err != nil {
						t.Fatal(err)
					}
				}
			}
			answer(0, 10)
			execute(t, c, fmt.Sprintf(`INSERT INTO stint_answers (id, owner, at, request, answer)
				WITH RECURSIVE numbers (n) AS (SELECT 11 UNION ALL SELECT n + 1 FROM numbers WHERE n < %d)
				SELECT id || '-' || n, owner, at, request, answer FROM (SELECT * FROM stint_answers ORDER BY at DESC LIMIT 1) AS last, numbers`, most))
			answer(most, most+5)
			count(most)
			if got, err := c.Answer(ctx, once("one", 4)); got != nil || err != nil {
				t.Errorf("the oldest: %q, %v", got, err)
			}
			if got, err := c.Answer(ctx, once("one", most)); string(got) != "answer 1000" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
			if got, err := c.Answer(ctx, catalog.NewOnce("one", "a text of the client 1000", []byte("another"))); got != nil || !errors.Is(err, catalog.ErrOther) {
				t.Errorf("another request: %q, %v", got, err)
			}
			// It was answered meanwhile: nothing of this one is kept.
			twice := once("one", most)
			if _, err := c.Users.Create(twice.In(ctx), "ann", catalog.User{ID: "alice"}); err != nil {
				t.Fatal(err)
			}
			if err := c.Finish(ctx, twice, []byte("other")); err == nil {
				t.Error("there are two answers")
			}
			if _, err := c.Users.Get(ctx, "alice"); !errors.As(err, new(*catalog.NotFoundError)) {
				t.Errorf("the user was created: %v", err)
			}
			// One that is too large is not kept, but what it is about is.
			large := once("one", -1)
			if _, err := c.Users.Create(large.In(ctx), "ann", catalog.User{ID: "alice"}); err != nil {
				t.Fatal(err)
			}
			if err := c.Finish(ctx, large, make([]byte, catalog.MaxAnswer+1)); err != nil {
				t.Error(err)
			}
			if _, err := c.Users.Get(ctx, "alice"); err != nil {
				t.Error(err)
			}
			count(most)
			// Two writes are a defect, and change nothing.
			two := once("one", -2)
			for i, want := range []bool{true, false} {
				if _, err := c.Users.Create(two.In(ctx), "ann", catalog.User{ID: strconv.Itoa(i)}); (err == nil) != want {
					t.Errorf("write %d: %v", i, err)
				}
			}
			two.Drop()
			if _, err := c.Users.Get(ctx, "0"); !errors.As(err, new(*catalog.NotFoundError)) {
				t.Error(err)
			}
			mu.Lock()
			now = now.Add(catalog.OnceTime)
			mu.Unlock()
			if got, err := c.Answer(ctx, once("one", most)); got != nil || err != nil {
				t.Errorf("after a day: %q, %v", got, err)
			}
			if err := c.Finish(ctx, once("two", 0), nil); err != nil {
				t.Fatal(err)
			}
			count(1)
		})
	}
}

// TestAnswersEnd has a node delete old answers, although no request comes.
func TestAnswersEnd(t *testing.T) {
	t.Parallel()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := catalog.Open(url, catalog.Options{Now: func() time.Time { return time.Now().Add(-catalog.OnceTime - time.Hour) }})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			if _, err := c.Up(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			if err := c.Finish(t.Context(), catalog.NewOnce("one", "a text of the client", nil), nil); err != nil {
				t.Fatal(err)
			}
			follow(t, url, catalog.Options{}, catalog.NodeOptions{Poll: 10 * time.Millisecond})
			wait.Nil(t, "the end of an old answer", func() error {
				var n int
				if err := catalog.DB(c).QueryRowContext(t.Context(), "SELECT count(*) FROM stint_answers").Scan(&n); err != nil || n != 0 {
					return fmt.Errorf("there are %d answers: %w", n, err)
				}
				return nil
			})
		})
	}
}
