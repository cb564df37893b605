package serve

import (
	"net"
	"os"
	"strings"
)

// Notify tells systemd the state of this service (sd_notify(3)), if it was started by systemd with Type=notify.
func Notify(state string) {
	where := os.Getenv("NOTIFY_SOCKET")
	if where == "" {
		return
	}
	if strings.HasPrefix(where, "@") { // an abstract socket
		where = "\x00" + where[1:]
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: where, Net: "unixgram"})
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = c.Write([]byte(state))
}
