package daemon

import (
	"net"
	"strconv"
	"strings"
)

// notify tells systemd what the daemon does, if systemd has started it.
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

// reloading is the message that a reload begins; READY=1 ends it. The time is for
// Type=notify-reload, by which systemd tells that READY=1 from an earlier one. With
// Type=notify systemd does not look at it.
func reloading() string {
	return "RELOADING=1\nMONOTONIC_USEC=" + strconv.FormatInt(monotonic(), 10)
}
