package admin

import (
	"context"
	"reflect"
	"time"
)

// Previews and replays read few events here, so that few are too many.
func init() { maxPreview, maxReplay = 2000, 4000 }

// TellAlways has replays say how far they are at every step, until the function that it returns is called.
func TellAlways() func() {
	was := replayTells
	replayTells = 0
	return func() { replayTells = was }
}

// LimitReplays has replays take no longer, until the function that it returns is called.
func LimitReplays(to time.Duration) func() {
	was := replayLimit
	replayLimit = to
	return func() { replayLimit = was }
}

// OccupyReplays takes the places of all replays.
func OccupyReplays(a *API) (leave func()) {
	a.streams.replays.Add(maxReplays)
	return func() { a.streams.replays.Add(-maxReplays) }
}

// Operation is an operation, for the test that generates openapi.json.
type Operation = operation

// Writes reports whether the operation changes something.
func (op *operation) Writes() bool { return op.writes() }

// Operations returns all operations of an API.
func Operations(a *API) []Operation { return a.operations }

// OpenAPI is the document that is served.
func OpenAPI() []byte { return openAPI() }

// FieldsOf returns the fields of an input or an output.
func FieldsOf(t reflect.Type) []reflect.StructField { return fieldsOf(t, nil) }

// Join joins a hub that opens its source with open, and leaves it when it has called then.
func Join(ctx context.Context, open, then func()) {
	h := hub{every: followEvery, open: func() source { open(); return source{next: func(context.Context) ([]item, int64) { return nil, 0 }} }}
	b := newMailbox(1, nil)
	h.join(ctx, b)
	then()
	h.leave(b)
}
