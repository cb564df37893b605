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

// readSocksTarget reads the address that a SOCKS client requests, as an IPv4 address: the clients in these tests
// request no other.
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
	if _, err := io.ReadFull(in, b[:10]); err != nil {
		return "", err
	}
	if b[3] != 1 {
		return "", errors.New("no IPv4 address")
	}
	return net.JoinHostPort(net.IP(b[4:8]).String(), strconv.Itoa(int(binary.BigEndian.Uint16(b[8:10])))), nil
}
