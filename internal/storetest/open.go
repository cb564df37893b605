package storetest

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/pace"
)

// OpenSilentServer checks that opening a URL does not wait forever for a server that accepts connections and never
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

// OpenWithoutServer checks what opening a URL says when its server, where nobody listens, has refused a connection:
// that nothing was sent, so that it can be tried again. The URL has s3cret as a secret, which no error shows.
func OpenWithoutServer(t *testing.T, url string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var dials atomic.Int32
	ctx = driverutil.WithDialer(ctx, func(ctx context.Context, network, address string) (net.Conn, error) {
		if dials.Add(1) > 1 {
			cancel() // the first attempt has ended
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	})
	if _, err := driver.Open(ctx, url); err == nil || driverutil.IsFinal(err) || !errors.Is(err, record.ErrUnsent) ||
		strings.Contains(err.Error(), "s3cret") {
		t.Errorf("nobody listens there: %v", err)
	}
}
