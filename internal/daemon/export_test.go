package daemon

import (
	"io"
	"net"
	"time"

	"github.com/stintdev/stint/engine"
)

// For tests.
var (
	NewErrorLog = newErrorLog
	NewRecorder = func() engine.Recorder { return newMetrics(nil) }
)

// Patient returns a connection as a server has it while it serves a request, whose body reads
// from there, and what is to be called when that is answered.
func Patient(c net.Conn, stall time.Duration) (conn net.Conn, body io.Reader, leave func()) {
	p := &patientConn{Conn: c, stall: stall, asked: func() {}, began: time.Now()}
	b := &patientBody{ReadCloser: p, conn: p}
	p.expect()
	return p, b, b.leave
}
