package grpclimit

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/stintdev/stint/engine"
	"github.com/stintdev/stint/rule"
)

// served is a call under rules that have a meter or places, while it is served. It measures the messages, as
// protobuf encodes them, the metadata that the handler sends, and the time.
type served struct {
	serving *engine.Serving
	meters  []rule.Meter

	mu      sync.Mutex
	in, out int64
	sized   bool // all messages could be measured
	sent    metadata.MD
	told    engine.Usage // by the handler
	over    bool
}

type servedKey struct{}

// Use says what the call of this context has used, in place of what is measured, or where nothing is: the tokens of a
// model, rows, seconds of a processor. Units are by meter, or, if used.Meters is nil, used.Cost for all meters of the
// rules that apply. It can be called as the work goes on: of each meter, the last value before the handler returns
// counts, and negative ones count as 0. Without rules that have a meter, it does nothing.
//
// The context is that of the handler: of a unary call, or of a stream that the handler was given. It is safe for
// concurrent use.
func Use(ctx context.Context, used engine.Usage) {
	if d, ok := ctx.Value(servedKey{}).(*served); ok {
		d.use(used)
	}
}

func (d *served) use(u engine.Usage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.told.Meters == nil {
		d.told.Meters = map[rule.Meter]int64{}
	}
	for _, m := range d.meters { // others have no rule
		if n, ok := u.Meters[m]; ok {
			d.told.Meters[m] = n
		} else if u.Meters == nil {
			d.told.Meters[m] = u.Cost
		}
	}
	d.told.Model, d.told.Estimated = cmp.Or(u.Model, d.told.Model), u.Estimated
}

func serveUntilEnd(s *engine.Serving) *served {
	return &served{serving: s, meters: s.Meters(nil), sized: true}
}

// end settles the call. A client that has left pays: otherwise it could have most of a stream for nothing.
func (d *served) end(ctx context.Context, returned bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return
	}
	d.over = true
	used := make(map[rule.Meter]int64, len(d.meters))
	for _, m := range d.meters {
		if n, ok := d.told.Meters[m]; ok {
			used[m] = n
		} else if n, ok := d.measured(m); ok {
			used[m] = n
		}
	}
	d.serving.End(engine.Usage{Meters: used, Model: d.told.Model, Estimated: d.told.Estimated}, (!returned || isServerError(err)) && ctx.Err() == nil)
}

func (d *served) measured(m rule.Meter) (int64, bool) {
	switch m {
	case "request_bytes":
		return d.in, d.sized
	case "response_bytes":
		return d.out, d.sized
	case "response_seconds":
		return int64((d.serving.Took() + time.Second - 1) / time.Second), true
	}
	name, ok := strings.CutPrefix(string(m), "header:")
	if !ok {
		return 0, false
	}
	values := d.sent.Get(name)
	if len(values) == 0 {
		return 0, false
	}
	n, err := strconv.ParseUint(values[len(values)-1], 10, 53)
	return int64(n), err == nil
}

// isServerError reports whether a status is one that HTTP would tell by 500 or more.
func isServerError(err error) bool {
	switch status.Code(err) {
	case codes.Unknown, codes.Internal, codes.Unavailable, codes.DataLoss, codes.DeadlineExceeded:
		return true
	default:
		return false
	}
}

// count adds a message to what has passed.
func (d *served) count(to *int64, message any) {
	p, ok := message.(proto.Message)
	n := 0
	if ok {
		n = proto.Size(p)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	*to += int64(n)
	d.sized = d.sized && ok
}

// note keeps metadata that is sent. Of headers and trailers of the same name, the trailer comes last.
func (d *served) note(md metadata.MD) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sent = metadata.Join(d.sent, md)
}

// unary serves a call that has one message each way.
func (d *served) unary(ctx context.Context, message any, handler grpc.UnaryHandler) (answer any, err error) {
	returned := false
	defer func() { d.end(ctx, returned, err) }()
	d.count(&d.in, message)
	ctx = context.WithValue(ctx, servedKey{}, d)
	if t := grpc.ServerTransportStreamFromContext(ctx); t != nil {
		answer, err = handler(grpc.NewContextWithServerTransportStream(ctx, &servedTransport{t, d}), message)
	} else {
		answer, err = handler(ctx, message)
	}
	if err == nil {
		d.count(&d.out, answer)
	}
	returned = true
	return answer, err
}

// stream serves a stream.
func (d *served) stream(srv any, stream grpc.ServerStream, handler grpc.StreamHandler) (err error) {
	returned := false
	defer func() { d.end(stream.Context(), returned, err) }()
	err = handler(srv, &servedStream{stream, d, context.WithValue(stream.Context(), servedKey{}, d)})
	returned = true
	return err
}

// servedTransport notes the metadata of a unary call.
type servedTransport struct {
	grpc.ServerTransportStream
	of *served
}

func (t *servedTransport) SetHeader(md metadata.MD) error {
	t.of.note(md)
	return t.ServerTransportStream.SetHeader(md)
}

func (t *servedTransport) SendHeader(md metadata.MD) error {
	t.of.note(md)
	return t.ServerTransportStream.SendHeader(md)
}

func (t *servedTransport) SetTrailer(md metadata.MD) error {
	t.of.note(md)
	return t.ServerTransportStream.SetTrailer(md)
}

// servedStream measures the messages and notes the metadata of a stream.
type servedStream struct {
	grpc.ServerStream
	of  *served
	ctx context.Context
}

// Context implements [grpc.ServerStream].
func (s *servedStream) Context() context.Context { return s.ctx }

func (s *servedStream) SetHeader(md metadata.MD) error {
	s.of.note(md)
	return s.ServerStream.SetHeader(md)
}

func (s *servedStream) SendHeader(md metadata.MD) error {
	s.of.note(md)
	return s.ServerStream.SendHeader(md)
}

func (s *servedStream) SetTrailer(md metadata.MD) {
	s.of.note(md)
	s.ServerStream.SetTrailer(md)
}

func (s *servedStream) SendMsg(message any) error {
	err := s.ServerStream.SendMsg(message)
	if err == nil {
		s.of.count(&s.of.out, message)
	}
	return err
}

func (s *servedStream) RecvMsg(message any) error {
	err := s.ServerStream.RecvMsg(message)
	if err == nil {
		s.of.count(&s.of.in, message)
	}
	return err
}
