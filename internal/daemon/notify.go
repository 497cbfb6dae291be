package daemon

import (
	"net"
	"strconv"
	"strings"
)

// notify tells systemd what the daemon does, if it was started by it. No one is told
// otherwise, and nothing depends on it.
func notify(environ []string, state string) {
	var socket string
	for _, v := range environ {
		if value, ok := strings.CutPrefix(v, "NOTIFY_SOCKET="); ok {
			socket = value
		}
	}
	if socket == "" {
		return
	}
	// An abstract socket is written with an @, and net knows that.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return
	}
	_, _ = conn.Write([]byte(state))
	_ = conn.Close()
}

// reloading is what systemd wants to hear before a reload: with the time, so that it
// can tell the READY=1 after it from one before.
func reloading() string {
	return "RELOADING=1\nMONOTONIC_USEC=" + strconv.FormatInt(monotonic(), 10)
}
