// Package httpclient is the one way in which stores speak HTTP: DynamoDB, S3, Cloud Storage, Azure, Kubernetes and
// Consul, and etcd for its time. A [Client] sends each request once and follows no redirect. It hands on no reply but
// the service's own: another service's page, an empty reply and half a body are errors, after which the outcome of a
// write is not known. It learns the service's clock, and knows whether a refusal of credentials may pass.
package httpclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// MaxReply bounds what is read of a reply: a page of the largest records, which are escaped in JSON.
const MaxReply = 64 << 20

// Doer sends a request. *http.Client is one, and so are the clients of the AWS SDK.
type Doer interface {
	Do(*http.Request) (*http.Response, error)
}

// Service says what the replies of a service look like, and who learns what from them.
type Service struct {
	// Name names the service in errors, as in "Consul".
	Name string
	// IsOwn reports whether a reply can come from the service, by its status and its headers.
	IsOwn func(*http.Response) bool
	// IsOwnBody, if set, reports whether the body of a reply with a 2xx status can come from the service. The client
	// then reads each body before it hands on the reply.
	IsOwnBody func(*http.Response, []byte) bool
	// Clock is the clock of this machine.
	Clock driver.Clock
	// Sources are where the credentials come from: see [driverutil.Admission].
	Sources []driverutil.SecretSource
	// AddDate, if set, is told the Date of each reply of the service's, also of a refusal, unless it comes from a
	// cache.
	AddDate func(date time.Time, from, to driver.Instant)
}

// Client sends requests to one service. Its methods may be called concurrently.
type Client struct {
	service Service
	doer    Doer

	// The client itself sees that a request was done, and with it that the credentials are accepted.
	*driverutil.Admission
}

// New makes a client that sends its requests with doer, whose settings it leaves alone.
func New(doer Doer, service Service) *Client {
	if service.Clock.Monotonic == nil {
		service.Clock = driver.SystemClock
	}
	return &Client{service: service, doer: withoutRedirects(doer),
		Admission: &driverutil.Admission{Clock: service.Clock, Sources: service.Sources}}
}

// withoutRedirects returns a client that follows no redirect: a write that is redirected can become a read, whose reply
// would look like a success, and a token or a signature would go to another host.
func withoutRedirects(doer Doer) Doer {
	var own http.Client
	switch d := doer.(type) {
	case *http.Client:
		own = *d
	case interface { // a client of the AWS SDK, which follows redirects that keep the method
		GetTransport() *http.Transport
		GetTimeout() time.Duration
	}:
		own = http.Client{Transport: d.GetTransport(), Timeout: d.GetTimeout()}
	default:
		return doer // Client.receive refuses what it brings from elsewhere
	}
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &own
}

// NoRedirects returns a client like this one that follows no redirect, for requests to another service, such as one
// that gives tokens.
func NoRedirects(client *http.Client) *http.Client { return withoutRedirects(client).(*http.Client) }

// Do sends a request once. An error without a meaning of its own leaves open what became of a write.
func (c *Client) Do(r *http.Request) (*http.Response, error) {
	reply, err := c.open(r)
	if err != nil {
		return nil, err
	}
	if c.service.IsOwnBody == nil {
		c.noteReply(reply)
		return reply, nil
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err != nil {
		return nil, fmt.Errorf("the reply of %s could not be read: %w", c.service.Name, err)
	}
	if reply.StatusCode < 300 && !c.service.IsOwnBody(reply, body) {
		return nil, c.foreignError(reply)
	}
	c.noteReply(reply)
	reply.Body = io.NopCloser(bytes.NewReader(body))
	return reply, nil
}

// RoundTrip is Do, for libraries that want an http.Client: see HTTPClient.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) { return c.Do(r) }

// HTTPClient returns a client that sends its requests with this one.
func (c *Client) HTTPClient() *http.Client { return NoRedirects(&http.Client{Transport: c}) }

// Stream is Do for a body that is read as it comes, of which only the headers are checked.
func (c *Client) Stream(r *http.Request) (*http.Response, error) {
	reply, err := c.open(r)
	if err == nil {
		c.noteReply(reply)
	}
	return reply, err
}

// noteReply learns from a reply of the service's own that it accepts the credentials.
func (c *Client) noteReply(reply *http.Response) {
	if reply.StatusCode < 300 {
		c.CredentialsAccepted()
	}
}

// open sends a request and checks the headers of the reply.
func (c *Client) open(r *http.Request) (*http.Response, error) {
	from := c.service.Clock.Now()
	reply, err := c.doer.Do(r)
	if err != nil {
		return nil, err
	}
	if err := c.check(r, reply); err != nil {
		reply.Body.Close()
		return nil, err
	}
	date, known := DateOf(reply)
	if known && c.service.AddDate != nil {
		c.service.AddDate(date, from, c.service.Clock.Now())
	}
	if keep, ok := r.Context().Value(dateKey{}).(func(time.Time)); ok && known {
		keep(date)
	}
	reply.Body = &boundedBody{body: reply.Body, left: MaxReply}
	return reply, nil
}

// check returns an error about a reply that is not the service's own.
func (c *Client) check(r *http.Request, reply *http.Response) error {
	switch at := reply.Header.Get("Location"); {
	case reply.Request != nil && reply.Request != r && reply.Request.Response != nil: // it was followed
		return c.redirectError(reply, reply.Request.URL.String())
	case reply.StatusCode >= 300 && reply.StatusCode < 400 && at != "":
		return c.redirectError(reply, at)
	case isHTML(reply), !c.service.IsOwn(reply), reply.StatusCode < 300 && !hasEnd(reply):
		return c.foreignError(reply)
	}
	return nil
}

// isHTML reports whether a reply is a page. No service that stores use answers so, but proxies do.
func isHTML(reply *http.Response) bool {
	return strings.HasPrefix(strings.ToLower(reply.Header.Get("Content-Type")), "text/html")
}

// hasEnd reports whether the end of a body can be told from the end of a connection that was cut. The reply to a HEAD
// has none.
func hasEnd(reply *http.Response) bool {
	isHead := reply.Request != nil && reply.Request.Method == http.MethodHead
	return isHead || reply.ContentLength >= 0 || len(reply.TransferEncoding) > 0 || reply.Uncompressed || reply.ProtoMajor != 1
}

// foreignError is about a reply that does not come from the service, or not as a whole.
func (c *Client) foreignError(reply *http.Response) error {
	what := strings.TrimSpace(reply.Header.Get("Content-Type"))
	if what == "" {
		what = "no content type"
	}
	return &ReplyError{text: fmt.Sprintf("the reply is not one of %s (status %d, %s): is there a proxy or a login page in "+
		"between?", c.service.Name, reply.StatusCode, what)}
}

// redirectError is about a redirect, which is not followed. Until the service has worked, the store's address is wrong.
func (c *Client) redirectError(reply *http.Response, location string) error {
	at := "elsewhere"
	if u, err := url.Parse(location); err == nil {
		if reply.Request != nil && reply.Request.URL != nil {
			u = reply.Request.URL.ResolveReference(u)
		}
		at = u.Scheme + "://" + u.Host + u.Path // the rest may be a secret
	}
	return &ReplyError{isFinal: !c.HasWorked(), text: fmt.Sprintf("%s redirects to %s (status %d), which is not followed: "+
		"correct the store's address, or the proxy in between", c.service.Name, at, reply.StatusCode)}
}

// ReplyError is about a reply that is not the service's own.
type ReplyError struct {
	text    string
	isFinal bool
}

func (e *ReplyError) Error() string { return e.text }

// Is makes the error driver.ErrInvalid if the service has never worked, so that its address is wrong.
func (e *ReplyError) Is(target error) bool { return e.isFinal && target == driver.ErrInvalid }

// ReplyErrorOf returns the ReplyError that err wraps, without what the libraries in between say, or nil.
func ReplyErrorOf(err error) error {
	var e *ReplyError
	if errors.As(err, &e) {
		return e
	}
	return nil
}

// boundedBody ends with an error after so many bytes.
type boundedBody struct {
	body io.ReadCloser
	left int64
}

var errTooLarge = errors.New("the reply is too large")

// Read fails when the body is larger than its bound. It reads one byte more than that, which it does not return.
func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, errTooLarge
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1] // one more, which shows that it is too large
	}
	n, err := b.body.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return n - 1, errTooLarge
	}
	return n, err
}

func (b *boundedBody) Close() error { return b.body.Close() }

// IsUnsent reports whether a request was certainly not sent, because no connection could be made.
func IsUnsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// DateOf returns the time of the host that has made a reply. A reply with an Age comes from a cache, and its Date is
// old.
func DateOf(reply *http.Response) (date time.Time, known bool) {
	date, err := http.ParseTime(reply.Header.Get("Date"))
	return date, err == nil && reply.Header.Get("Age") == ""
}

// dateKey is the key of a context's value: who is told the Date of the replies to its requests.
type dateKey struct{}

// WithDate returns a context for requests of which keep is told the Date of the reply.
func WithDate(ctx context.Context, keep func(time.Time)) context.Context {
	return context.WithValue(ctx, dateKey{}, keep)
}
