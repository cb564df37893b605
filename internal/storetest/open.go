package storetest

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// OpenSilentServer checks that opening a URL does not wait for ever for a server that accepts connections and never
// answers. The URL has HOST in place of the server, and s3cret as a secret, which no error shows.
func OpenSilentServer(t *testing.T, url string) {
	t.Helper()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	var machine pace.Pace
	defer machine.Watch()()
	began := time.Now()
	_, err = driver.Open(t.Context(), strings.Replace(url, "HOST", silent.Addr().String(), 1))
	if err == nil || driverutil.IsFinal(err) || strings.Contains(err.Error(), "s3cret") ||
		time.Since(began) > driverutil.MaxOpenTime+time.Second+machine.Lost(began) {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}
