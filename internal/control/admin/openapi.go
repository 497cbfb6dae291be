package admin

import (
	"context"
	"crypto/sha256"
	_ "embed" // for openapi.json
	"encoding/hex"
	"net/http"
	"reflect"
)

// openAPI describes the API. A test generates it from the operations and their types,
// and fails if the file is stale: go test ./internal/control/admin -run TestDocument -update.
//
//go:embed openapi.json
var openAPI []byte

// The sections of the document.
const (
	tagDocument = "Document"
	tagAccess   = "Access"
	tagRules    = "Rules"
	tagTiers    = "Tiers"
	tagUsers    = "Users"
	tagKeys     = "Keys"
	tagTenants  = "Tenants"
	tagLists    = "Lists"
	tagWhole    = "Documents"
	tagSubjects = "Subjects"
	tagRecord   = "Record"
	tagLive     = "Live"
	tagSystem   = "System"
	tagEnvoy    = "Envoy"
	tagChanges  = "Changes"
)

// addDocument serves the document.
func (a *API) addDocument() {
	type document struct {
		ContentType string `header:"Content-Type" hidden:"true"`
		ETag        string `header:"ETag" hidden:"true"`
		Body        []byte
	}
	sum := sha256.Sum256(openAPI)
	etag := `"` + hex.EncodeToString(sum[:8]) + `"`
	add(a, operation{
		ID: "getOpenAPI", Method: http.MethodGet, Path: "/openapi.json", Tag: tagDocument,
		Summary: "This document", Description: "Returns this description of the API, as OpenAPI 3.1.",
		Answer:   "The document.",
		Produces: []content{{"application/json", reflect.TypeFor[map[string]any](), "An OpenAPI 3.1 document."}},
	}, anyone, func(context.Context, *struct{}) (*document, error) {
		return &document{"application/json", etag, openAPI}, nil
	})
}
