package admin

import (
	"context"
	"crypto/sha256"
	_ "embed" // for openapi.json.gz
	"encoding/hex"
	"net/http"
	"reflect"

	"github.com/stintdev/stint/internal/kit/packed"
)

// packedAPI is openapi.json, which describes the API: as it is, it would be a hundredth of the binary. A test generates both from
// the operations and their types, and fails if they are stale: go test ./internal/control/admin -run TestDocument -update.
//
//go:embed openapi.json.gz
var packedAPI []byte

var openAPI = packed.Text(packedAPI)

// The sections of the document.
const (
	tagDocument = "Document"
	tagAccess   = "Access"
	tagMe       = "Self-service"
	tagRules    = "Rules"
	tagTiers    = "Tiers"
	tagUsers    = "Users"
	tagKeys     = "Keys"
	tagTenants  = "Tenants"
	tagLists    = "Lists"
	tagWhole    = "Documents"
	tagSearch   = "Search"
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
	sum := sha256.Sum256(packedAPI)
	etag := `"` + hex.EncodeToString(sum[:8]) + `"`
	add(a, operation{
		ID: "getOpenAPI", Method: http.MethodGet, Path: "/openapi.json", Tag: tagDocument,
		Summary: "This document", Description: "Returns this description of the API, as OpenAPI 3.1.",
		Answer:   "The document.",
		Produces: []content{{"application/json", reflect.TypeFor[map[string]any](), "An OpenAPI 3.1 document."}},
	}, anyone, func(context.Context, *struct{}) (*document, error) {
		return &document{"application/json", etag, openAPI()}, nil
	})
}
