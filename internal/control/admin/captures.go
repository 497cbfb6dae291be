package admin

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"reflect"
	"strconv"
	"time"

	"github.com/stintdev/stint"
	"github.com/stintdev/stint/internal/control/catalog"
	"github.com/stintdev/stint/internal/kit/quiet"
	"github.com/stintdev/stint/internal/record/capture"
)

// Captures has the decisions of this node captured.
type Captures interface {
	Start(o capture.Options) error
	Current() (s *capture.Session, running, file bool)
	Stop(ctx context.Context, reason string) error
	Open() (*os.File, error)
	Remove() error
}

var _ Captures = (*capture.Keeper)(nil)

// NewCapture says how long to capture decisions, and how large the file may become.
type NewCapture struct {
	For      float64 `json:"for_seconds,omitempty" doc:"How long, in seconds: 1 to 3600. Default 600." example:"600"`
	MaxBytes int64   `json:"max_bytes,omitempty" doc:"How large the file may become, in bytes: 65536 or more. Default 1 GiB." example:"1073741824"`
}

// Capture is the last capture of this node.
type Capture struct {
	Node       string    `json:"node" doc:"The node whose decisions are captured." example:"node-7"`
	Running    bool      `json:"running" doc:"Whether it is under way." example:"true"`
	File       bool      `json:"file" doc:"Whether there is a file: of this capture or, while it is under way, of the one before." example:"false"`
	Started    time.Time `json:"started,omitzero" doc:"When it began. Missing, if this process has made none." example:"2026-01-31T12:00:00Z"`
	Until      time.Time `json:"until,omitzero" doc:"When it ends at the latest." example:"2026-01-31T12:10:00Z"`
	Ended      time.Time `json:"ended,omitzero" doc:"When it has ended." example:"2026-01-31T12:03:20Z"`
	Reason     string    `json:"reason,omitempty" enum:"time,size,disk,rules,stopped,shutdown,error" doc:"Why it has ended: after its time; the file was as large as it may be; the disk had no more room; the rules were replaced by others; someone has stopped it; the node has stopped; the file could not be written." example:"size"`
	Decisions  int64     `json:"decisions" doc:"How many decisions are in the file." example:"120000"`
	Calls      int64     `json:"calls" doc:"How many calls to the counters are." example:"130000"`
	Unfinished int64     `json:"unfinished" doc:"How many decisions have begun that are not: they are not written yet or, when it has ended, had not ended." example:"12"`
	Lost       int64     `json:"lost" doc:"How many records came faster than they could be written. If there are any, a replay is not exact." example:"0"`
	Bytes      int64     `json:"bytes" doc:"How large the file is." example:"11534336"`
}

// errNoCaptures is the problem where nothing can be captured.
var errNoCaptures = fail(http.StatusConflict, "this node has no directory for captures: set STATE_DIRECTORY, XDG_STATE_HOME or HOME for it")

func (a *API) addCaptures() {
	none := []int{http.StatusConflict}
	addQuery(a, operation{
		ID: "getCapture", Method: http.MethodGet, Path: "/capture", Tag: tagRecord,
		Summary: "Get the capture of this node", Description: "Returns how the last capture of this node goes, or went.",
	}, catalog.Administrator, func(context.Context, *struct{}) (Capture, error) { return a.capture(), nil })
	add(a, operation{
		ID: "startCapture", Method: http.MethodPost, Path: "/capture", Tag: tagRecord, Status: http.StatusAccepted, Problems: none,
		Summary: "Capture all decisions of this node",
		Description: "Writes all decisions of this node to a file, with everything that they depend on, until the time is over, the file is as large as it may be, or the rules are replaced by others. " +
			"One capture is under way at a time; its file takes the place of the last one. The file has paths, addresses, users and the headers that rules look at, as they are; no credentials. " +
			"It is refused with 409 if the settings keep paths or addresses out of the record, and if rules look at a header with credentials.",
	}, catalog.Administrator, a.startCapture)
	add(a, operation{
		ID: "stopCapture", Method: http.MethodPost, Path: "/capture/stop", Tag: tagRecord, Problems: none,
		Summary: "Stop the capture of this node", Description: "Ends the capture that is under way, and returns it when its file is there.",
	}, catalog.Administrator, func(ctx context.Context, _ *struct{}) (*struct{ Body Capture }, error) {
		if a.options.Captures == nil {
			return nil, errNoCaptures
		}
		err := a.options.Captures.Stop(ctx, capture.EndedByCaller)
		if errors.Is(err, capture.ErrNone) {
			return nil, fail(http.StatusConflict, "no capture is under way")
		}
		return &struct{ Body Capture }{a.capture()}, err
	})
	add(a, operation{
		ID: "getCaptureFile", Method: http.MethodGet, Path: "/capture/file", Tag: tagRecord, Problems: []int{http.StatusNotFound},
		Summary:     "Download the last capture of this node",
		Description: "Returns the file, for stint replay --capture. If the connection breaks, it is incomplete, which stint replay notices.",
		Answer:      "The file.",
		Produces:    []content{{"application/octet-stream", reflect.TypeFor[[]byte](), "The file."}},
	}, catalog.Administrator, a.sendCapture)
	add(a, operation{
		ID: "deleteCaptureFile", Method: http.MethodDelete, Path: "/capture/file", Tag: tagRecord, Problems: []int{http.StatusNotFound},
		Summary: "Delete the last capture of this node", Description: "Deletes the file. A capture that is under way goes on.",
	}, catalog.Administrator, func(context.Context, *struct{}) (*struct{}, error) {
		if a.options.Captures == nil {
			return nil, errNoFile
		}
		err := a.options.Captures.Remove()
		if errors.Is(err, capture.ErrNone) {
			err = errNoFile
		}
		return &struct{}{}, err
	})
}

var errNoFile = fail(http.StatusNotFound, "this node has no captured decisions")

// capture returns the last capture.
func (a *API) capture() Capture {
	var c Capture
	if a.options.Status != nil {
		c.Node = a.options.Status().Node
	}
	if a.options.Captures == nil {
		return c
	}
	s, running, file := a.options.Captures.Current()
	if c.Running, c.File = running, file; s == nil {
		return c
	}
	sum, _ := s.Summary() // an error is a reason
	c.Started, c.Until, c.Ended, c.Reason = sum.Started, s.Until().UTC(), sum.Ended, sum.Reason
	c.Decisions, c.Calls, c.Unfinished, c.Lost, c.Bytes = sum.Decisions, sum.Calls, sum.Unfinished, sum.Lost, sum.Bytes
	return c
}

func (a *API) startCapture(ctx context.Context, in *struct{ Body *NewCapture }) (*struct{ Body Capture }, error) {
	n := NewCapture{For: 600, MaxBytes: 1 << 30}
	if in.Body != nil {
		n = NewCapture{cmp.Or(in.Body.For, n.For), cmp.Or(in.Body.MaxBytes, n.MaxBytes)}
	}
	const longest = 3600
	switch {
	case a.options.Captures == nil:
		return nil, errNoCaptures
	case a.options.NoCaptures != "":
		return nil, fail(http.StatusConflict, a.options.NoCaptures)
	case !(n.For >= 1 && n.For <= longest):
		return nil, blame(http.StatusUnprocessableEntity, "for_seconds", "want 1 to "+strconv.Itoa(longest)+", which is an hour", "")
	case n.MaxBytes < capture.MinBytes:
		return nil, blame(http.StatusUnprocessableEntity, "max_bytes", "want "+strconv.Itoa(capture.MinBytes)+" or more", "")
	}
	if _, running, _ := a.options.Captures.Current(); running {
		return nil, fail(http.StatusConflict, capture.ErrRunning.Error())
	}
	o := capture.Options{For: time.Duration(n.For * float64(time.Second)), MaxBytes: n.MaxBytes}
	if err := a.logCapture(ctx, &o); err != nil {
		return nil, err
	}
	err := a.options.Captures.Start(o)
	invalid := new(stint.InvalidError)
	switch {
	case errors.Is(err, capture.ErrRunning):
		return nil, fail(http.StatusConflict, capture.ErrRunning.Error())
	case errors.As(err, &invalid):
		return nil, fail(http.StatusConflict, invalid.Error())
	}
	return &struct{ Body Capture }{a.capture()}, err
}

// logCapture logs, before it happens, that the person of the request has decisions captured.
func (a *API) logCapture(ctx context.Context, o *capture.Options) error {
	node := ""
	if a.options.Status != nil {
		node = a.options.Status().Node
	}
	if a.options.Catalog != nil {
		if err := a.options.Catalog.LogCapture(catalog.Apart(ctx), actor(ctx), node, o.For, o.MaxBytes); err != nil {
			return err
		}
	}
	a.log.LogAttrs(quiet.Every(ctx), slog.LevelInfo, "admin: decisions are captured", slog.String("actor", actor(ctx)), slog.String("for", o.For.String()), slog.Int64("max_bytes", o.MaxBytes))
	return nil
}

func (a *API) sendCapture(ctx context.Context, _ *struct{}) (*streamed, error) {
	if a.options.Captures == nil {
		return nil, errNoFile
	}
	leave, ok := occupy(&a.streams.exports, maxExports)
	if !ok {
		return nil, fail(http.StatusServiceUnavailable, "there are "+strconv.Itoa(maxExports)+" exports running, which is the maximum").with("Retry-After", "5")
	}
	f, err := a.options.Captures.Open()
	if err != nil {
		leave()
		if errors.Is(err, capture.ErrNone) {
			err = errNoFile
		}
		return nil, err
	}
	return &streamed{func() {
		defer leave()
		defer func() { _ = f.Close() }() // it was only read
		out := newSender(ctx)
		defer out.end()
		out.w.Header().Set("Content-Disposition", `attachment; filename="`+capture.File+`"`)
		if out.begin("application/octet-stream"); out.Method == http.MethodHead {
			return
		}
		if _, err := io.Copy(out, f); err != nil {
			panic(http.ErrAbortHandler) // or the client would take a part for the whole
		}
	}}, nil
}
