package redis

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
)

// DefaultClientOption returns the settings of the clients that this package makes for a URL. They have no address.
// Start from them to make a client for [New], or for [Connect].
func DefaultClientOption() rueidis.ClientOption {
	// They differ from rueidis's defaults because:
	//   - DisableRetry: this package repeats its scripts, and must know whether a request may have run without a reply.
	//   - DisableCache: nothing here reads through the client's cache, so no connection has to set it up.
	//   - AlwaysPipelining, and one connection (PipelineMultiplex -1): concurrent requests share a connection, and a
	//     call whose context ends does not close it under the others. Requests are sent and run in order (redis.io:
	//     "Redis pipelining").
	//     A caller that is alone would be slowed down by that, so a store on one server has another connection for it:
	//     see direct.go.
	//   - MaxFlushDelay: of many concurrent requests, more go into one write to the socket, which costs client and
	//     server more than a script does. A single request does not wait.
	//   - The buffers: rueidis makes 1 MiB for each connection. Ours carry requests and replies of less than 1 KiB, of
	//     which a client has thousands under way at most.
	//   - The timeouts and keep-alives: a broken connection is noticed within seconds, well before a usual TTL ends.
	return rueidis.ClientOption{
		DisableRetry:        true,
		DisableCache:        true,
		AlwaysPipelining:    true,
		PipelineMultiplex:   -1,
		MaxFlushDelay:       20 * time.Microsecond,
		ReadBufferEachConn:  32 << 10,
		WriteBufferEachConn: 32 << 10,
		ConnWriteTimeout:    2 * time.Second,
		Dialer:              net.Dialer{Timeout: 2 * time.Second, KeepAlive: time.Second},
	}
}

// Connect makes a store with a client of its own, which the store closes. It is for programs that build the settings of
// the client in code, where a URL cannot express them: start from [DefaultClientOption]. The client is for Sentinels if
// Sentinel.MasterSet is set, for one server if ForceSingleClient is, and otherwise for a Cluster.
//
// Connect returns when the servers have answered. While a server is being started it tries again, for up to 10 seconds,
// or until ctx ends. It returns ErrInvalid if there is no address or an option cannot work, ErrDenied if the servers
// refuse the credentials, and ErrUnsupported if they are not what the settings say.
func Connect(ctx context.Context, client rueidis.ClientOption, opts *Options) (driver.Store, error) {
	if len(client.InitAddress) == 0 {
		return nil, fmt.Errorf("%w: the settings of the client name no address", driver.ErrInvalid)
	}
	if opts == nil {
		opts = &Options{}
	}
	checked := *opts
	if err := checked.setDefaults(); err != nil {
		return nil, err
	}
	s, err := openClient(ctx, client, opts)
	if err != nil {
		return nil, err
	}
	return s, nil
}
