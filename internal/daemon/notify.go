package daemon

import (
	"net"
	"strconv"
)

// notify sends the state of the daemon to systemd, if systemd has started it.
func notify(environ []string, state string) {
	socket := lookupEnv(environ, "NOTIFY_SOCKET")
	if socket == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return
	}
	_, _ = conn.Write([]byte(state))
	_ = conn.Close()
}

// reloading is the message that a reload begins; READY=1 ends it. With Type=notify-reload,
// systemd uses the time to tell that READY=1 from an earlier one.
func reloading() string {
	return "RELOADING=1\nMONOTONIC_USEC=" + strconv.FormatInt(monotonic(), 10)
}
