package zk

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
)

// TestServersKeepLastAddresses: for a name that cannot be looked up any more the last addresses are used.
func TestServersKeepLastAddresses(t *testing.T) {
	t.Parallel()
	known := true
	config := Config{Servers: []string{"one:1", "127.0.0.1:2", "[::1]:3"},
		Lookup: func(ctx context.Context, host string) ([]string, error) {
			if host != "one" {
				return net.DefaultResolver.LookupHost(ctx, host)
			}
			if _, bounded := ctx.Deadline(); !known || !bounded {
				return nil, errors.New("no answer")
			}
			return []string{"10.0.0.1", "fe80::1"}, nil
		}}
	rest := []server{{"127.0.0.1:2", "127.0.0.1:2"}, {"[::1]:3", "[::1]:3"}}
	both := append([]server{{"one:1", "10.0.0.1:1"}, {"one:1", "[fe80::1]:1"}}, rest...)
	e := NewEnsemble(t.Context(), config)
	if got := e.lookUpServers(t.Context()); !slices.Equal(got, both) {
		t.Errorf("%v, want %v", got, both)
	}
	known = false
	if got := e.lookUpServers(t.Context()); !slices.Equal(got, both) {
		t.Errorf("without an answer: %v, want %v", got, both)
	}
	unknown := append([]server{{"one:1", "one:1"}}, rest...)
	if got := NewEnsemble(t.Context(), config).lookUpServers(t.Context()); !slices.Equal(got, unknown) {
		t.Errorf("never known: %v, want %v", got, unknown)
	}
	known, config.Dial = true, (&net.Dialer{}).DialContext
	if got := NewEnsemble(t.Context(), config).lookUpServers(t.Context()); !slices.Equal(got, unknown) {
		t.Errorf("with a Dial of the user's: %v", got)
	}
}
