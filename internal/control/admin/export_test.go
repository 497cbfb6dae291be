package admin

import (
	"context"
	"reflect"
)

// Operation is an operation, for the test that generates openapi.json.
type Operation = operation

// Operations returns all operations of an API.
func Operations(a *API) []Operation { return a.operations }

// OpenAPI is the document that is served.
func OpenAPI() []byte { return openAPI }

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
