package e2e_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"

	"github.com/stintdev/stint/internal/record/recordtest"
	"github.com/stintdev/stint/internal/test/testpostgres"
)

// TestDashboardCluster opens the overview of one of three nodes: it shows all of them, one alone, and a part of time that was
// chosen by dragging over a chart. It writes screenshots like TestDashboardPages.
func TestDashboardCluster(t *testing.T) {
	t.Parallel()
	db, upstream := testpostgres.Shared(t).Database(t), newApp(t).address
	var nodes []*site
	for i := range 3 {
		name := fmt.Sprint("node-", i+1)
		s := startSite(t, upstream, following(t, db, "STINT_SERVER_CATALOG_NODE="+name, "STINT_SERVER_CATALOG_POLL=300ms")...)
		nodes = append(nodes, s)
		batch, err := json.Marshal(map[string]any{"requests": slices.Repeat([]any{map[string]any{"path": "/from/" + name, "user": "user-of-" + name, "ip": "198.51.100.7"}}, 5*(i+1))})
		if err != nil {
			t.Fatal(err)
		}
		s.repeat(t, 500*time.Millisecond, batch)
	}
	recordtest.Fill(t, recordtest.Store(t, recordtest.Open(t, db), time.Now), 5000, time.Now())
	w := nodes[0].signIn(t, wide)
	w.open("/")
	w.settled("Overview")
	w.says("at 3 nodes, now", "per second, at 3 nodes")
	w.keep("overview-cluster")
	w.choose("Node", "node-2")
	w.says("at node-2, now", "per second, at node-2")
	if where := eval[string](w, "location.hash"); !strings.Contains(where, "node=node-2") {
		t.Errorf("the address is %s", where)
	}
	w.choose("Node", "All nodes")
	w.says("at 3 nodes, now")

	w.visit(at("/events", "follow", "true"))
	w.says("/from/node-1", "/from/node-2", "/from/node-3")

	w.visit(at("/", "range", "1h"))
	w.settled("Overview")
	w.until(func() error {
		if n := eval[int](w, "document.querySelectorAll('.u-over').length"); n != 2 {
			return fmt.Errorf("%d charts", n)
		}
		return nil
	})
	w.says("the time before")
	w.drag(".u-over", 0.3, 0.8)
	w.until(func() error {
		if where := eval[string](w, "location.hash"); !strings.Contains(where, "from=") || !strings.Contains(where, "to=") {
			return fmt.Errorf("the address is %s", where)
		}
		return nil
	})
	w.settled("Overview")
	w.keep("overview-zoom")
	eval[any](w, "history.back()")
	w.until(func() error {
		if where := eval[string](w, "location.hash"); !strings.Contains(where, "range=1h") {
			return fmt.Errorf("the address is %s", where)
		}
		return nil
	})
	w.clean(false)
}

// drag presses at a share of the width of the first element of a selector, moves to another, and releases.
func (w *tab) drag(selector string, from, to float64) {
	w.Helper()
	box := eval[[4]float64](w, fmt.Sprintf("(r => [r.left, r.top, r.width, r.height])(document.querySelector(%q).getBoundingClientRect())", selector))
	at := func(share float64, kind input.DispatchMouseEventType, button input.MouseButton) {
		call(w, input.DispatchMouseEvent, input.DispatchMouseEventParams{Type: kind, X: box[0] + share*box[2], Y: box[1] + box[3]/2, Button: button, ClickCount: 1})
	}
	at(from, input.DispatchMouseEventTypeMouseMoved, "")
	at(from, input.DispatchMouseEventTypeMousePressed, input.MouseButtonLeft)
	at((from+to)/2, input.DispatchMouseEventTypeMouseMoved, input.MouseButtonLeft)
	at(to, input.DispatchMouseEventTypeMouseMoved, input.MouseButtonLeft)
	at(to, input.DispatchMouseEventTypeMouseReleased, input.MouseButtonLeft)
}
