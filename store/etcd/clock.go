package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// ReadClock implements record.ClockReader. etcd's own replies have no time in them. But members that are reached by TLS
// serve gRPC with Go's HTTP server, which adds the Date to the headers of each reply, and the others answer plain HTTP
// on the same port. It is the clock of the member that answers.
func (tb *table) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	if tb.life.Err() != nil {
		return now, 0, driver.ErrClosed
	}
	date, err := askOnce(ctx, tb.readHeaderDate)
	if err != nil {
		return now, 0, tb.store.convertError(err)
	}
	for _, endpoint := range tb.store.cli.Endpoints() {
		if !date.IsZero() {
			break
		}
		date, err = askOnce(ctx, func(ctx context.Context) (time.Time, error) { return readHTTPDate(ctx, endpoint) })
	}
	if date.IsZero() {
		if ctx.Err() != nil {
			return now, 0, ctx.Err()
		}
		return now, 0, fmt.Errorf("%w: the members of etcd do not tell the time: no reply to HTTP on their client "+
			"URLs has a Date (%v)", driver.ErrUnsupported, err)
	}
	const cut = time.Second // a Date has no fraction
	return date.Add(cut / 2), cut / 2, nil
}

// readHeaderDate reads a key, and returns the Date of the reply's headers; zero if it has none.
func (tb *table) readHeaderDate(ctx context.Context) (time.Time, error) {
	var header metadata.MD
	_, err := pb.NewKVClient(tb.store.cli.ActiveConnection()).Range(ctx,
		&pb.RangeRequest{Key: []byte(tb.recordKey("")), KeysOnly: true}, grpc.Header(&header))
	if err != nil {
		return time.Time{}, err
	}
	date, _ := http.ParseTime(strings.Join(header.Get("date"), ""))
	return date, nil
}

// readHTTPDate asks a member for its version by plain HTTP, and returns the Date of the reply.
func readHTTPDate(ctx context.Context, endpoint string) (time.Time, error) {
	scheme, host, ok := strings.Cut(endpoint, "://")
	switch {
	case !ok:
		host = endpoint
	case scheme != "http":
		return time.Time{}, errors.New("it is not reached by plain HTTP")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/version", nil)
	if err != nil {
		return time.Time{}, err
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return time.Time{}, err
	}
	_ = reply.Body.Close()
	return http.ParseTime(reply.Header.Get("Date"))
}
