package driverutil

import (
	"net"
	"net/url"
)

// RedactURL shows a URL without what may be secret: its user info, its options and its fragment.
func RedactURL(u *url.URL) string {
	if u.Host == "" && u.Path == "" {
		return u.Scheme + "://" // String would leave out the slashes
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// IsLoopback reports whether a host, without a port, is this machine: what is sent there needs no encryption.
func IsLoopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
