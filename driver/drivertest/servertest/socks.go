package servertest

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strconv"
)

// socksGranted is the reply to a SOCKS client that it is connected.
var socksGranted = []byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0}

// readSocksTarget reads the address that a SOCKS client requests: an IPv4 or IPv6 address, or a name.
func readSocksTarget(in net.Conn) (string, error) {
	b := make([]byte, 256)
	if _, err := io.ReadFull(in, b[:2]); err != nil {
		return "", err
	}
	if _, err := io.ReadFull(in, b[:b[1]]); err != nil {
		return "", err
	}
	if _, err := in.Write([]byte{5, 0}); err != nil {
		return "", err
	}
	if _, err := io.ReadFull(in, b[:4]); err != nil {
		return "", err
	}
	kind, size := b[3], byte(0)
	switch kind {
	case 1:
		size = net.IPv4len
	case 4:
		size = net.IPv6len
	case 3:
		if _, err := io.ReadFull(in, b[:1]); err != nil {
			return "", err
		}
		size = b[0]
	default:
		return "", errors.New("neither an IP address nor a name")
	}
	host, port := b[:size], make([]byte, 2)
	if _, err := io.ReadFull(in, host); err != nil {
		return "", err
	}
	if _, err := io.ReadFull(in, port); err != nil {
		return "", err
	}
	name := string(host)
	if kind != 3 {
		name = net.IP(host).String()
	}
	return net.JoinHostPort(name, strconv.Itoa(int(binary.BigEndian.Uint16(port)))), nil
}
