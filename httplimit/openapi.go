package httplimit

import (
	_ "embed" // for openAPI
	"net/http"
)

// openAPI describes the decision API.
//
//go:embed openapi.json
var openAPI []byte

func serveOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header()["Content-Type"] = typeJSON
	_, _ = w.Write(openAPI) // the caller may be gone
}
