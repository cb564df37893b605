// Package goredis opens the Redis store of package [redisstore] with the settings of a go-redis client
// (github.com/redis/go-redis/v9), which a program may have already. It is a module of its own, so that programs without
// go-redis do not depend on it.
//
// # What is taken over
//
// The store takes over the settings of the client and makes a few connections of its own. The client itself is not
// used. It stays the caller's, who may go on using it and may close it at any time. These settings are taken over:
//
//   - addresses, network (TCP or a Unix socket), Dialer, DialTimeout, TLSConfig
//   - user and password, CredentialsProvider, CredentialsProviderContext, StreamingCredentialsProvider
//   - DB, ClientName, DisableIdentity
//   - of Sentinels, the name of the primary, and the user and password for the Sentinels
//
// # What is not taken over
//
// Settings that say how the client does its own work have no meaning for the store: timeouts of commands, retries,
// pools, buffers, pipelining, client-side caching, maintenance notifications, which replicas are read, the suffix of
// the library's name. The store repeats its steps itself and always asks the primary. Nor is Protocol taken over: the
// store speaks RESP3 to every server that knows it, because a server of RESP2 cannot notify those who watch a lock.
//
// Hooks, as of tracing, cannot be seen from here and do not run for the requests of the store. The client of the store
// is rueidis, and only the fields of its settings that are named above are set.
//
// Settings that the store would have to obey, but cannot, give an ErrUnsupported that names them: OnConnect,
// Limiter, ClusterSlots and NewClient of a cluster client, ReplicaOnly, and everything about a Ring. A client made by
// redis.NewFailoverClient hides its settings, and so does one of redis.NewFailoverClusterClient: use [NewFailover].
//
// # Why settings, and not the client itself
//
// Steps of the store are scripts that may be repeated; the store must know whether a request may have been sent, must
// see that a link is cut within about two seconds, and must know when a subscription has begun. Its tests prove that on
// rueidis. go-redis hides these facts, and its own retries run below the store. A second path through go-redis would
// need all of these tests again and would be slower: rueidis sends the requests of all goroutines on one connection.
//
// [redisstore]: https://pkg.go.dev/github.com/holdfast-go/holdfast/store/redis
package goredis

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
	redisstore "github.com/holdfast-go/holdfast/store/redis"
)

// failoverAddress is what go-redis puts in the place of the address of a client that redis.NewFailoverClient has made.
const failoverAddress = "FailoverClient"

// New makes a store with the settings of a *redis.Client or a *redis.ClusterClient, and connects it to the servers. The
// package doc says which settings. Closing the store leaves the client open, and closing the client leaves the store
// open. opts may be nil; its Place is the addresses by default.
//
// New returns when the servers have answered. While a server is being started it tries again, for up to 10 seconds, or
// until ctx ends. It returns ErrInvalid if the client is nil or an option cannot work, ErrUnsupported if a setting
// cannot be taken over, and ErrDenied if the servers refuse the credentials.
func New(ctx context.Context, client redis.UniversalClient, opts *redisstore.Options) (driver.Store, error) {
	var s settings
	var err error
	switch c := client.(type) {
	case nil:
		return nil, errNilClient
	case *redis.Client:
		if c == nil {
			return nil, errNilClient
		}
		s, err = clientSettings(c.Options())
	case *redis.ClusterClient:
		if c == nil {
			return nil, errNilClient
		}
		s, err = clusterSettings(c.Options())
	default:
		return nil, fmt.Errorf("%w: the settings of a %T are unknown here; pass a *redis.Client or a *redis.ClusterClient",
			driver.ErrUnsupported, client)
	}
	if err != nil {
		return nil, err
	}
	return s.openStore(ctx, opts)
}

// NewFailover makes a store of the primary that Sentinels know, with the settings that redis.NewFailoverClient is
// called with. A program that has redis.UniversalOptions calls their Failover method for them.
//
// The settings are wanted because the client does not give them away: it has only a function that finds the primary
// when a connection is made. With that the store would stay with a primary that was replaced for as long as it could
// reach it, and would keep granting its locks, while others take them from the new primary. With the addresses of the
// Sentinels the store learns of a failover from them. Otherwise it is as [New].
func NewFailover(ctx context.Context, failover *redis.FailoverOptions, opts *redisstore.Options) (driver.Store, error) {
	if failover == nil {
		return nil, fmt.Errorf("%w: the FailoverOptions are nil", driver.ErrInvalid)
	}
	s, err := failoverSettings(failover)
	if err != nil {
		return nil, err
	}
	return s.openStore(ctx, opts)
}

var errNilClient = fmt.Errorf("%w: the client is nil: pass one that redis.NewClient or redis.NewClusterClient has made",
	driver.ErrInvalid)

// unsupportedError is the error of a setting that cannot be taken over.
func unsupportedError(setting, advice string) error {
	return fmt.Errorf("%w: the go-redis client has %s, which the store cannot take over; %s", driver.ErrUnsupported,
		setting, advice)
}

// clientSettings reads the settings of a client of one server. go-redis has filled in the defaults, also a Dialer that
// speaks TLS if TLSConfig is set, and knows Unix sockets: so it dials for the store too.
func clientSettings(o *redis.Options) (settings, error) {
	const advice = "make the store of a client without it: redis.NewClient of a copy of its Options"
	switch {
	case o.Addr == failoverAddress:
		return settings{}, fmt.Errorf("%w: a client of redis.NewFailoverClient hides the addresses of its Sentinels; "+
			"call goredis.NewFailover with its FailoverOptions", driver.ErrUnsupported)
	case o.OnConnect != nil:
		return settings{}, unsupportedError("an OnConnect hook", advice)
	case o.Limiter != nil:
		return settings{}, unsupportedError("a Limiter", advice)
	}
	s := settings{
		kind: oneServer, addresses: []string{o.Addr}, database: o.DB,
		network: o.Network, dialer: o.Dialer, dialTimeout: o.DialTimeout, tls: o.TLSConfig,
		clientName: o.ClientName, anonymous: o.DisableIdentity,
		credentials: credentials{o.Username, o.Password, o.CredentialsProvider, o.CredentialsProviderContext,
			o.StreamingCredentialsProvider},
	}
	return s, nil
}

// clusterSettings reads the settings of a client of a Cluster.
func clusterSettings(o *redis.ClusterOptions) (settings, error) {
	const advice = "make the store of a client without it: redis.NewClusterClient of a copy of its ClusterOptions"
	switch {
	case o.ClusterSlots != nil:
		return settings{}, unsupportedError("a ClusterSlots function",
			"if redis.NewFailoverClusterClient made it, call goredis.NewFailover with its FailoverOptions")
	case o.OnConnect != nil:
		return settings{}, unsupportedError("an OnConnect hook", advice)
	case o.NewClient != nil && !isDefaultNewClient(o.NewClient):
		return settings{}, unsupportedError("a NewClient function", advice)
	case len(o.Addrs) == 0:
		return settings{}, fmt.Errorf("%w: the go-redis client has no addresses", driver.ErrInvalid)
	}
	s := settings{
		kind: cluster, addresses: o.Addrs,
		network: "tcp", dialer: o.Dialer, dialTimeout: o.DialTimeout, tls: o.TLSConfig,
		clientName: o.ClientName, anonymous: o.DisableIdentity,
		credentials: credentials{o.Username, o.Password, o.CredentialsProvider, o.CredentialsProviderContext,
			o.StreamingCredentialsProvider},
	}
	return s, nil
}

// isDefaultNewClient reports whether this is redis.NewClient, which go-redis fills in where nothing is set.
func isDefaultNewClient(f func(*redis.Options) *redis.Client) bool {
	return reflect.ValueOf(f).Pointer() == reflect.ValueOf(redis.NewClient).Pointer()
}

// failoverSettings reads the settings of a client of a primary that Sentinels know. They are as the user has made them,
// without defaults.
func failoverSettings(o *redis.FailoverOptions) (settings, error) {
	const advice = "call NewFailover with a copy of the FailoverOptions without it"
	switch {
	case o.MasterName == "" || len(o.SentinelAddrs) == 0:
		return settings{}, fmt.Errorf("%w: the FailoverOptions need a MasterName and SentinelAddrs", driver.ErrInvalid)
	case o.OnConnect != nil:
		return settings{}, unsupportedError("an OnConnect hook", advice)
	case o.ReplicaOnly:
		return settings{}, unsupportedError("ReplicaOnly", advice)
	}
	s := settings{
		kind: sentinels, addresses: o.SentinelAddrs, primary: o.MasterName, database: o.DB,
		network: "tcp", dialer: o.Dialer, dialTimeout: o.DialTimeout, tls: o.TLSConfig,
		clientName: o.ClientName, anonymous: o.DisableIdentity,
		credentials: credentials{o.Username, o.Password, o.CredentialsProvider, o.CredentialsProviderContext,
			o.StreamingCredentialsProvider},
		sentinelCredentials: credentials{username: o.SentinelUsername, password: o.SentinelPassword},
	}
	return s, nil
}

// openStore makes the store.
func (s *settings) openStore(ctx context.Context, opts *redisstore.Options) (driver.Store, error) {
	var o redisstore.Options
	if opts != nil {
		o = *opts
	}
	if o.Place == "" {
		o.Place = s.placeForInfo()
	}
	return redisstore.Connect(ctx, s.clientOption(), &o)
}

// placeForInfo shows where the store is, without credentials.
func (s *settings) placeForInfo() string {
	scheme := "redis"
	switch {
	case s.kind == sentinels:
		scheme = "redis+sentinel"
	case s.kind == cluster:
		scheme = "redis+cluster"
	case s.network == "unix":
		scheme = "unix"
	case s.tls != nil:
		scheme = "rediss"
	}
	place := scheme + "://" + strings.Join(s.addresses, ",")
	if s.primary != "" {
		place += "/" + s.primary
	}
	if s.database > 0 {
		place += "/" + strconv.Itoa(s.database)
	}
	return place
}
