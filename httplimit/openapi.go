package httplimit

import (
	_ "embed" // for openapi.json.gz
	"net/http"

	"github.com/stintdev/stint/internal/kit/packed"
)

// packedAPI is openapi.json, which describes the decision API. After a change there, run
// go test ./httplimit -run TestOpenAPIPacked -update.
//
//go:embed openapi.json.gz
var packedAPI []byte

var openAPI = packed.Text(packedAPI)

func serveOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header()["Content-Type"] = typeJSON
	_, _ = w.Write(openAPI()) // the caller may be gone
}
