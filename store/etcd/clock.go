package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// ReadClock implements record.Table. etcd's own replies have no time in them. But its members answer HTTP on the
// same port, with the Date of their clock. The clock is that of the first member that answers.
func (tb *table) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: tb.store.tls.Clone(), DisableKeepAlives: true}}
	for _, endpoint := range tb.store.cli.Endpoints() {
		if tb.life.Err() != nil {
			return now, 0, driver.ErrClosed
		}
		url, urlErr := tb.store.memberURL(endpoint)
		if urlErr != nil {
			err = urlErr
			continue
		}
		if now, err = askOnce(ctx, func(ctx context.Context) (time.Time, error) { return readDate(ctx, client, url) }); err == nil {
			const cut = time.Second // a Date has no fraction
			return now.Add(cut / 2), cut / 2, nil
		}
		if ctx.Err() != nil {
			return now, 0, ctx.Err()
		}
	}
	return now, 0, fmt.Errorf("%w: the members of etcd do not tell the time by HTTP on their client URLs: %v",
		driver.ErrUnsupported, err)
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
		return "", fmt.Errorf("%s is not reached by HTTP", endpoint)
	}
	return scheme + "://" + host + "/version", nil
}

func readDate(ctx context.Context, client *http.Client, url string) (time.Time, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return time.Time{}, err
	}
	reply, err := client.Do(request)
	if err != nil {
		return time.Time{}, err
	}
	_ = reply.Body.Close()
	return http.ParseTime(reply.Header.Get("Date"))
}
