package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/httpclient"
)

// memberClocks asks members for their time. etcd's own replies have no time in them. But its members answer HTTP on the
// same port, with the Date of their clock.
type memberClocks struct {
	web       *httpclient.Client
	transport *http.Transport

	mu   sync.Mutex
	last string // the endpoint that has told its time last
}

func newMemberClocks(config *tls.Config, files *driverutil.TLSFiles) *memberClocks {
	transport := &http.Transport{TLSClientConfig: config.Clone()}
	if files != nil {
		transport.DialTLSContext = files.Dialer((&net.Dialer{}).DialContext, requestTimeout)
	}
	web := httpclient.New(&http.Client{Transport: transport}, httpclient.Service{Name: "etcd", IsOwn: isVersionReply})
	return &memberClocks{web: web, transport: transport}
}

// sortEndpoints puts the endpoint first that has told its time last: to ask one that hangs takes long.
func (m *memberClocks) sortEndpoints(endpoints []string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(endpoints, m.last); i > 0 {
		return slices.Concat(endpoints[i:], endpoints[:i])
	}
	return endpoints
}

func (m *memberClocks) noteAnswer(endpoint string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = endpoint
}

// ReadClock implements record.Table. It reads the clock of the first member that answers.
func (tb *table) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	clocks := tb.store.clocks
	for _, endpoint := range clocks.sortEndpoints(tb.store.cli.Endpoints()) {
		if tb.life.Err() != nil {
			return now, 0, driver.ErrClosed
		}
		url, urlErr := tb.store.memberURL(endpoint)
		if urlErr != nil {
			err = urlErr
			continue
		}
		now, err = callServer(ctx, func(ctx context.Context) (time.Time, error) { return readDate(ctx, clocks.web, url) })
		if err == nil {
			clocks.noteAnswer(endpoint)
			const cut = time.Second // a Date has no fraction
			return now.Add(cut / 2), cut / 2, nil
		}
		if ctx.Err() != nil {
			return now, 0, ctx.Err()
		}
	}
	if tellsNoTime(err) {
		return now, 0, fmt.Errorf("%w: the members of etcd do not tell the time by HTTP on their client URLs: %v",
			driver.ErrUnsupported, err)
	}
	return now, 0, fmt.Errorf("no member of etcd tells the time: %v", err)
}

// tellsNoTime reports whether an error says that a member does not speak HTTP there, or tells no time. Any other
// error may pass, such as a connection that is refused.
func tellsNoTime(err error) bool {
	return errors.Is(err, errNeedsTLS) || errors.Is(err, errNoDate) || httpclient.ReplyErrorOf(err) != nil ||
		err != nil && strings.Contains(err.Error(), "malformed HTTP response") // of a port for gRPC alone
}

// errNoDate is about a member that tells no time.
var errNoDate = errors.New("no date")

// isVersionReply reports whether a reply can come from a member, which tells its version as JSON.
func isVersionReply(reply *http.Response) bool {
	return reply.StatusCode == http.StatusOK && strings.HasPrefix(reply.Header.Get("Content-Type"), "application/json")
}

// errNeedsTLS is about a member whose certificate cannot be checked.
var errNeedsTLS = errors.New("to ask members for the time by HTTPS, set Options.TLS to the TLS configuration of the client")

// memberURL returns where a member tells its version, which it tells everybody.
func (t *nodeStore) memberURL(endpoint string) (string, error) {
	scheme, host, ok := strings.Cut(endpoint, "://")
	switch {
	case !ok && t.tls != nil:
		scheme, host = "https", endpoint
	case !ok:
		scheme, host = "http", endpoint
	case scheme == "https" && t.tls == nil:
		return "", errNeedsTLS
	case scheme != "http" && scheme != "https":
		return "", fmt.Errorf("%w: %s is not reached by HTTP", errNoDate, endpoint)
	}
	return scheme + "://" + host + "/version", nil
}

// readDate reads the Date of a member's reply.
func readDate(ctx context.Context, client *httpclient.Client, url string) (date time.Time, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return time.Time{}, err
	}
	reply, err := client.Stream(request)
	if err != nil {
		return time.Time{}, err
	}
	defer reply.Body.Close()
	if _, err := io.Copy(io.Discard, reply.Body); err != nil { // the connection is used again only after the whole reply
		return time.Time{}, err
	}
	date, known := httpclient.DateOf(reply)
	if !known {
		return date, errNoDate
	}
	return date, nil
}
