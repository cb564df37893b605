package driverutil

import (
	"context"
	"net"
)

// DialFunc makes a connection, as [net.Dialer.DialContext] does.
type DialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

type dialerKey struct{}

// WithDialer returns a context with which [driver.Open] opens a store that makes all its connections with dial, for as
// long as the store is open: through a proxy, or through a link that a test can cut. TLS, if it is used, runs over
// these connections.
func WithDialer(ctx context.Context, dial DialFunc) context.Context {
	return context.WithValue(ctx, dialerKey{}, dial)
}

// DialerOf returns the function that was given to [WithDialer], or nil: then a store dials as it always does. It is
// called by the stores on servers when they open a URL.
func DialerOf(ctx context.Context) DialFunc {
	dial, _ := ctx.Value(dialerKey{}).(DialFunc)
	return dial
}
