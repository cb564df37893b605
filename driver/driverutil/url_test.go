package driverutil

import (
	"net/url"
	"testing"
)

// RedactURL keeps the place and nothing else.
func TestRedactURL(t *testing.T) {
	u, err := url.Parse("redis://user:SECRET@host:6379/0?password=SECRET#SECRET")
	if err != nil || RedactURL(u) != "redis://host:6379/0" {
		t.Errorf("%v %s", err, RedactURL(u))
	}
	if u, err := url.Parse("consul://?token=SECRET"); err != nil || RedactURL(u) != "consul://" {
		t.Errorf("%v %s", err, RedactURL(u))
	}
}

// TestIsLoopback: this machine is told from others by its name and by its addresses.
func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{"localhost": true, "127.0.0.1": true, "127.1.2.3": true, "::1": true,
		"": false, "10.0.0.1": false, "localhost.example": false, "::": false} {
		if IsLoopback(host) != want {
			t.Errorf("%q: %v", host, !want)
		}
	}
}
