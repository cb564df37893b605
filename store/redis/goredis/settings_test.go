package goredis

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// TestSettings: the settings of a go-redis client are in those of the store's own client, but for the protocol.
func TestSettings(t *testing.T) {
	t.Parallel()
	config := &tls.Config{ServerName: "n"}
	o := &redis.Options{Addr: "h:1", Username: "u", Password: "p", DB: 4, ClientName: "me", Protocol: 2,
		DisableIdentity: true, DialTimeout: 7 * time.Second, TLSConfig: config}
	s, err := clientSettings(redis.NewClient(o).Options())
	if err != nil {
		t.Fatal(err)
	}
	got := s.clientOption()
	if !slices.Equal(got.InitAddress, []string{"h:1"}) || !got.ForceSingleClient || got.SelectDB != 4 ||
		got.Username != "u" || got.Password != "p" || got.ClientName != "me" || got.AlwaysRESP2 ||
		got.TLSConfig != config || got.Dialer.Timeout != 7*time.Second || len(got.ClientSetInfo) != 0 ||
		got.ClientSetInfo == nil || got.Sentinel.MasterSet != "" || s.placeForInfo() != "rediss://h:1/4" {
		t.Errorf("one server: %+v at %s", got, s.placeForInfo())
	}

	s, err = clusterSettings(redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"h:1", "i:2"}, Username: "u",
		Password: "p", ClientName: "me", TLSConfig: config}).Options())
	if err != nil {
		t.Fatal(err)
	}
	got = s.clientOption()
	if !slices.Equal(got.InitAddress, []string{"h:1", "i:2"}) || got.ForceSingleClient || got.Username != "u" ||
		got.Password != "p" || got.ClientName != "me" || got.TLSConfig != config ||
		got.ClientSetInfo != nil || s.placeForInfo() != "redis+cluster://h:1,i:2" {
		t.Errorf("a Cluster: %+v at %s", got, s.placeForInfo())
	}

	s, err = failoverSettings(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"h:1", "i:2"}, DB: 4,
		Username: "u", Password: "p", SentinelUsername: "su", SentinelPassword: "sp", ClientName: "me", TLSConfig: config})
	if err != nil {
		t.Fatal(err)
	}
	got = s.clientOption()
	if !slices.Equal(got.InitAddress, []string{"h:1", "i:2"}) || got.ForceSingleClient || got.SelectDB != 4 ||
		got.Username != "u" || got.Password != "p" || got.Sentinel.MasterSet != "m" || got.Sentinel.Username != "su" ||
		got.Sentinel.Password != "sp" || got.Sentinel.ClientName != "me" || got.Sentinel.TLSConfig != config ||
		got.Sentinel.Dialer.Timeout == 0 || s.placeForInfo() != "redis+sentinel://h:1,i:2/m/4" {
		t.Errorf("Sentinels: %+v at %s", got, s.placeForInfo())
	}
}

// TestUserWithoutPassword: a user without a password is not sent, as by go-redis.
func TestUserWithoutPassword(t *testing.T) {
	t.Parallel()
	s := settings{credentials: credentials{username: "u"}}
	if o := s.clientOption(); o.Username != "" || o.Password != "" {
		t.Errorf("%s:%s", o.Username, o.Password)
	}
	s.credentials.provider = func() (string, string) { return "u", "" }
	if a, err := s.clientOption().AuthCredentialsFn(rueidis.AuthCredentialsContext{}); err != nil || a.Username != "" {
		t.Errorf("%+v %v", a, err)
	}
}

// TestDialer: the dialer of the client makes the store's connections, and has as long as the client gives it. Those to
// Sentinels are told from those to servers.
func TestDialer(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	s := settings{kind: sentinels, network: "tcp", dialTimeout: time.Minute, addresses: []string{"h:1"}, primary: "m"}
	s.dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		end, ok := ctx.Deadline()
		if left := time.Until(end); !ok || left > time.Minute || left < 30*time.Second || network != "tcp" {
			t.Errorf("the dialer has %v on %s", left, network)
		}
		if addr != "h:1" {
			return nil, refused
		}
		ours, theirs := net.Pipe()
		t.Cleanup(func() { ours.Close(); theirs.Close() })
		return ours, nil
	}
	o := s.clientOption()
	for _, d := range []*net.Dialer{&o.Dialer, &o.Sentinel.Dialer} {
		conn, err := o.DialCtxFn(t.Context(), "h:1", d, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := conn.RemoteAddr().(sentinelAddr); ok != (d == &o.Sentinel.Dialer) {
			t.Errorf("a connection is taken for one to a Sentinel: %v", ok)
		}
		if _, err := o.DialCtxFn(t.Context(), "elsewhere:1", d, nil); !errors.Is(err, refused) {
			t.Errorf("the error of the dialer is lost: %v", err)
		}
	}
}

// TestStreamIsReadAgain: a connection is authenticated again from time to time if the credentials are a stream, and the
// provider is left without subscriptions.
func TestStreamIsReadAgain(t *testing.T) {
	t.Parallel()
	stream := &countingStream{}
	s := settings{credentials: credentials{streaming: stream}}
	for range 3 {
		a, err := s.clientOption().AuthCredentialsFn(rueidis.AuthCredentialsContext{})
		if in := time.Until(a.RefreshAfter); err != nil || a.Username != "u" || a.Password != "p" ||
			in <= 0 || in > refreshInterval {
			t.Errorf("%+v %v", a, err)
		}
	}
	if len(stream.listeners) != 0 || stream.subscribed != 3 {
		t.Errorf("%d subscriptions, of which %d are left", stream.subscribed, len(stream.listeners))
	}
	stream.err = errors.New("no token")
	if _, err := s.clientOption().AuthCredentialsFn(rueidis.AuthCredentialsContext{}); !errors.Is(err, stream.err) {
		t.Errorf("the error of the provider is lost: %v", err)
	}
	if driverutil.IsFinal(stream.err) {
		t.Error("connecting is not tried again")
	}
}

// countingStream is a provider of credentials that knows its listeners.
type countingStream struct {
	listeners  map[auth.CredentialsListener]bool
	subscribed int
	err        error
}

func (c *countingStream) Subscribe(l auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	if c.err != nil {
		return nil, nil, c.err
	}
	if c.listeners == nil {
		c.listeners = map[auth.CredentialsListener]bool{}
	}
	c.listeners[l] = true
	c.subscribed++
	return auth.NewBasicCredentials("u", "p"), func() error { delete(c.listeners, l); return nil }, nil
}
