package azure

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/httpclient"
	"github.com/holdfast-go/holdfast/engine/record"
)

// The few requests that a store sends, as "Blob service REST API" documents them.

// apiVersion is the version of the service's API. An old one is enough, and emulators know it.
const apiVersion = "2021-12-02"

// requestTimeout is how long one request may take. After that another request finds out what became of it.
const requestTimeout = 5 * time.Second

// maxHostSkew is how far the clocks of the service's hosts may be apart: the service promises nothing about that.
const maxHostSkew = time.Second

// containerClient sends requests about one container, and learns the service's clock from the replies.
type containerClient struct {
	web         *httpclient.Client
	account     string // the address of the account, without a slash at its end
	container   string
	credentials Credentials
	clock       *record.ServerClock
	life        *driverutil.Lifetime
	closeClient func() error // closes the client, if it belongs to the store
	versioned   *atomic.Bool // the service keeps old versions: it has said so
}

// newContainerClient makes a client of the container at an address such as https://account.blob.core.windows.net/locks.
func newContainerClient(client *http.Client, account, container string, o Options) *containerClient {
	c := &containerClient{account: account, container: container, credentials: o.Credentials,
		clock: &record.ServerClock{Clock: o.Clock, HostsApart: maxHostSkew}, life: driverutil.NewLifetime(),
		closeClient: func() error { return nil }, versioned: &atomic.Bool{}}
	c.web = httpclient.New(client, httpclient.Service{Name: "Azure Storage", IsOwn: isOwnReply, Clock: o.Clock,
		Sources: o.sources, AddDate: c.clock.AddDate})
	return c
}

// share returns a client of the same container that can be closed on its own.
func (c *containerClient) share() *containerClient {
	other := *c
	other.life, other.closeClient = driverutil.NewLifetime(), func() error { return nil }
	return &other
}

// close ends the calls that are running. It does not close a client of the caller's.
func (c *containerClient) close() error {
	if c.life.End() {
		return c.closeClient()
	}
	return nil
}

const (
	clientRequestID = "X-Ms-Client-Request-Id"
	errorCodeHeader = "X-Ms-Error-Code"
	leaseIDHeader   = "X-Ms-Lease-Id"
	metaPrefix      = "X-Ms-Meta-"
)

// isOwnReply reports whether a reply can come from the service, or from an emulator of it, as the reply to this
// request. A cache would repeat the id of another request. The emulator's errors have neither that id nor the version.
func isOwnReply(reply *http.Response) bool {
	id := reply.Header.Get(clientRequestID)
	sent := reply.Request != nil && reply.Request.Header.Get(clientRequestID) == id
	switch {
	case reply.Header.Get("X-Ms-Request-Id") == "":
		return false
	case reply.StatusCode >= 300:
		return sent || id == ""
	}
	return sent && reply.Header.Get("X-Ms-Version") != ""
}

// request is a request about the container, or about a blob in it.
type request struct {
	method  string
	blob    string // empty: the container
	query   url.Values
	header  http.Header
	body    []byte
	account bool   // it is about the account, and not about the container
	needs   string // the right that it needs, for the error if it is missing
	limit   int64  // of the reply, in bytes; 0: no more than httpclient.MaxReply
}

// reply is what the service answered.
type reply struct {
	header http.Header
	body   []byte
}

// refusal is an error that the service has answered with.
type refusal struct {
	status  int
	code    string // x-ms-error-code
	message string // its first line
}

func (e *refusal) Error() string {
	return strings.TrimSuffix(fmt.Sprintf("%s (%d): %s", e.code, e.status, e.message), ": ")
}

// url is the address of what a request is about.
func (c *containerClient) url(r request) string {
	text := c.account
	if r.account {
		text += "/"
	} else if text += "/" + url.PathEscape(c.container); r.blob != "" {
		text += "/" + escapePath(r.blob)
	}
	if len(r.query) > 0 {
		text += "?" + r.query.Encode()
	}
	return text
}

// escapePath escapes the name of a blob, except its slashes.
func escapePath(name string) string {
	return strings.ReplaceAll(url.PathEscape(name), "%2F", "/")
}

// callServer sends one request, which ends when the store is closed, and translates its error. An error without a reply
// leaves open what became of a write: the engine then reads the blob.
func (c *containerClient) callServer(ctx context.Context, r request) (answer reply, err error) {
	err = c.life.Call(ctx, requestTimeout, "Azure Storage", func(ctx context.Context) (err error) {
		answer, err = c.send(ctx, r)
		return err
	}, func(err error) error { return c.explainError(err, r) })
	return answer, err
}

// send sends one request and reads the reply.
func (c *containerClient) send(ctx context.Context, r request) (reply, error) {
	h, err := http.NewRequestWithContext(ctx, r.method, c.url(r), bytes.NewReader(r.body))
	if err != nil {
		return reply{}, fmt.Errorf("%w: the address of the container cannot be used", driver.ErrInvalid)
	}
	maps.Copy(h.Header, r.header)
	h.Header.Set("X-Ms-Version", apiVersion)
	h.Header.Set("X-Ms-Date", c.date().UTC().Format(http.TimeFormat))
	h.Header.Set(clientRequestID, rand.Text())
	if c.credentials != nil {
		if err := c.credentials(h); err != nil {
			return reply{}, &credentialsError{err}
		}
	}
	in, err := c.web.Stream(h)
	var shown *url.Error
	if errors.As(err, &shown) {
		err = shown.Err // without the address, which may have a signature
	}
	if err != nil {
		return reply{}, err
	}
	defer in.Body.Close()
	data, err := io.ReadAll(io.LimitReader(in.Body, cmp.Or(r.limit, httpclient.MaxReply)))
	switch {
	case err != nil:
		return reply{}, fmt.Errorf("the reply could not be read: %w", err)
	case in.StatusCode < 300:
		if in.Header.Get("X-Ms-Version-Id") != "" {
			c.versioned.Store(true)
		}
		return reply{in.Header, data}, nil
	}
	refused := &refusal{status: in.StatusCode, code: in.Header.Get(errorCodeHeader)}
	var body struct {
		Message string `xml:"Message"`
	}
	if xml.Unmarshal(data, &body) == nil { // the rest of it may have what was signed
		refused.message, _, _ = strings.Cut(body.Message, "\n")
	}
	return reply{header: in.Header}, refused
}

// date is the time of a request. The service refuses one that is a quarter of an hour off, so it is the service's own
// time, once that is known.
func (c *containerClient) date() time.Time {
	if early, late, known := c.clock.Bounds(); known {
		return time.UnixMicro(early + (late-early)/2)
	}
	return time.Now() // before the first reply there is no other
}

// ifUnchanged is the condition that a blob still has this ETag, or that there is none, for an empty one.
func ifUnchanged(etag string) http.Header {
	if etag == "" {
		return http.Header{"If-None-Match": {"*"}}
	}
	return http.Header{"If-Match": {etag}}
}

// blob is a blob and its properties.
type blob struct {
	data     []byte
	etag     string
	metadata map[string]string // with names in lower case
	leased   bool              // somebody has a lease of it
	breaking bool              // which ends soon
	infinite bool              // which does not end by itself
}

// readBlob reads what a reply says of a blob. Each reply must have an ETag, because each write depends on it.
func readBlob(answer reply) (blob, error) {
	b := blob{data: answer.body, etag: answer.header.Get("Etag"), metadata: map[string]string{}}
	if b.etag == "" {
		return b, errNoETag
	}
	for key, values := range answer.header {
		if name, ok := strings.CutPrefix(key, metaPrefix); ok {
			b.metadata[strings.ToLower(name)] = values[0]
		}
	}
	state := answer.header.Get("X-Ms-Lease-State")
	b.leased, b.breaking = state == "leased" || state == "breaking", state == "breaking"
	b.infinite = answer.header.Get("X-Ms-Lease-Duration") == "infinite"
	return b, nil
}

var (
	errNoETag = errors.New("the service's reply has no ETag")
	// errNotFound is the error about a blob that does not exist.
	errNotFound = errors.New("the blob does not exist")
)

// get reads a blob, at most limit bytes of it.
func (c *containerClient) get(ctx context.Context, name string, limit int64) (blob, error) {
	answer, err := c.callServer(ctx, request{method: http.MethodGet, blob: name, needs: "to read blobs", limit: limit})
	if err != nil {
		return blob{}, err
	}
	return readBlob(answer)
}

// head reads the properties of a blob, if it has a lease of this id, or in any case if the id is empty.
func (c *containerClient) head(ctx context.Context, name, lease string) (blob, error) {
	r := request{method: http.MethodHead, blob: name, needs: "to read blobs", header: http.Header{}}
	setIf(r.header, leaseIDHeader, lease)
	answer, err := c.callServer(ctx, r)
	if err != nil {
		return blob{}, err
	}
	return readBlob(answer)
}

func setIf(h http.Header, name, value string) {
	if value != "" {
		h.Set(name, value)
	}
}

// put writes a blob if its ETag is that one, and returns the new one.
func (c *containerClient) put(ctx context.Context, name, etag string, data []byte, metadata map[string]string,
) (string, error) {
	r := request{method: http.MethodPut, blob: name, header: ifUnchanged(etag), body: data,
		needs: "to create and to write blobs"}
	r.header.Set("X-Ms-Blob-Type", "BlockBlob")
	r.header.Set("Content-Type", "application/json")
	r.header.Set("X-Ms-Blob-Cache-Control", "no-store")
	for key, value := range metadata {
		r.header.Set(metaPrefix+key, value)
	}
	return etagOf(c.callServer(ctx, r))
}

// etagOf is the ETag that a write has made. Without one the outcome is unknown.
func etagOf(answer reply, err error) (string, error) {
	if err == nil && answer.header.Get("Etag") == "" {
		err = errNoETag
	}
	if err != nil {
		return "", err
	}
	return answer.header.Get("Etag"), nil
}

// remove removes a blob if its ETag is that one, with its snapshots.
func (c *containerClient) remove(ctx context.Context, name, etag string) error {
	r := request{method: http.MethodDelete, blob: name, header: ifUnchanged(etag), needs: "to delete blobs"}
	r.header.Set("X-Ms-Delete-Snapshots", "include")
	_, err := c.callServer(ctx, r)
	return err
}

// listed is an entry of a listing.
type listed struct {
	Name       listedName `xml:"Name"`
	VersionID  string     `xml:"VersionId"`
	LeaseState string     `xml:"Properties>LeaseState"`
	Record     string     `xml:"Metadata>holdfast"`
}

// listedName is a name, which is escaped if XML has no place for its characters.
type listedName struct {
	Text    string `xml:",chardata"`
	Encoded bool   `xml:"Encoded,attr"`
}

// String is the name; empty, if it cannot be read.
func (n listedName) String() string {
	if !n.Encoded {
		return n.Text
	}
	text, _ := url.PathUnescape(n.Text)
	return text
}

// list returns one page of the blobs that begin with prefix, at most size, and the marker of the next page, or "".
// include is what else to list.
func (c *containerClient) list(ctx context.Context, prefix, marker, include string, size int,
) (page []listed, next string, err error) {
	q := url.Values{"restype": {"container"}, "comp": {"list"}, "prefix": {prefix}, "maxresults": {strconv.Itoa(size)}}
	for name, value := range map[string]string{"marker": marker, "include": include} {
		if value != "" {
			q.Set(name, value)
		}
	}
	answer, err := c.callServer(ctx, request{method: http.MethodGet, query: q, needs: "to list blobs"})
	if err != nil {
		return nil, "", err
	}
	var parsed struct {
		XMLName xml.Name `xml:"EnumerationResults"`
		Blobs   []listed `xml:"Blobs>Blob"`
		Next    string   `xml:"NextMarker"`
	}
	if err := xml.Unmarshal(answer.body, &parsed); err != nil {
		return nil, "", fmt.Errorf("the listing cannot be read: %w", err)
	}
	return slices.DeleteFunc(parsed.Blobs, func(b listed) bool { return !strings.HasPrefix(b.Name.String(), prefix) }),
		parsed.Next, nil
}

// readProperties reads the headers with the properties of the container, or with those of the account.
func (c *containerClient) readProperties(ctx context.Context, ofAccount bool) (http.Header, error) {
	r := request{method: http.MethodHead, query: url.Values{"restype": {"container"}}, needs: "to read containers"}
	if ofAccount {
		r.query = url.Values{"restype": {"account"}, "comp": {"properties"}}
	}
	answer, err := c.callServer(ctx, r)
	return answer.header, err
}

// readSoftDelete reads for how many days the account keeps what was deleted.
func (c *containerClient) readSoftDelete(ctx context.Context) (days int, err error) {
	answer, err := c.callServer(ctx, request{method: http.MethodGet, account: true,
		needs: "to read the service's properties",
		query: url.Values{"restype": {"service"}, "comp": {"properties"}}})
	if err != nil {
		return 0, err
	}
	var parsed struct {
		XMLName xml.Name `xml:"StorageServiceProperties"`
		Enabled bool     `xml:"DeleteRetentionPolicy>Enabled"`
		Days    int      `xml:"DeleteRetentionPolicy>Days"`
	}
	if err := xml.Unmarshal(answer.body, &parsed); err != nil || !parsed.Enabled {
		return 0, err
	}
	return parsed.Days, nil
}
