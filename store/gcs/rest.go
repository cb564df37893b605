package gcs

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/api/googleapi"

	"github.com/holdfast-go/holdfast/driver/driverutil/httpclient"
)

// The few requests that a store sends, as Cloud Storage documents them: the JSON API, and the XML API to read an object
// with its version in one request. Google's own client library is not used, because it can also speak another protocol:
// that would make each program with this package larger by 20 MB, and slower to start. No request is sent again here:
// the second would be refused because of the effect of the first.

// DefaultEndpoint is the address of Cloud Storage.
const DefaultEndpoint = "https://storage.googleapis.com"

// bucketClient sends requests about one bucket.
type bucketClient struct {
	http     *httpclient.Client
	endpoint string // such as DefaultEndpoint, without a slash at its end
	bucket   string
}

// conditions are the preconditions of a request. The zero value has none.
type conditions struct {
	doesNotExist               bool
	generation, metageneration int64 // 0: any
}

// addTo adds the preconditions to the parameters of a request.
func (c conditions) addTo(q url.Values) {
	if c.doesNotExist {
		q.Set("ifGenerationMatch", "0")
	}
	if c.generation != 0 {
		q.Set("ifGenerationMatch", strconv.FormatInt(c.generation, 10))
	}
	if c.metageneration != 0 {
		q.Set("ifMetagenerationMatch", strconv.FormatInt(c.metageneration, 10))
	}
}

// objectAttrs are the attributes of an object that matter here.
type objectAttrs struct {
	Name           string            `json:"name"`
	Generation     int64             `json:"generation,string"`
	Metageneration int64             `json:"metageneration,string"`
	Metadata       map[string]string `json:"metadata"`
	Created        time.Time         `json:"timeCreated"`
	Updated        time.Time         `json:"updated"`
}

// objectHead is what a read of an object's content tells of its attributes.
type objectHead struct {
	generation, metageneration int64
	hasMetadata                bool
}

// errNotFound is wrapped by the error about an object that does not exist.
var errNotFound = errors.New("the object does not exist")

// objectURL is the address of an object in the JSON API.
func (c *bucketClient) objectURL(name string, q url.Values) string {
	return c.listURL(q, "/"+url.PathEscape(name))
}

// listURL is the address of all objects in the JSON API, with what follows it in the path.
func (c *bucketClient) listURL(q url.Values, rest string) string {
	return c.endpoint + "/storage/v1/b/" + url.PathEscape(c.bucket) + "/o" + rest + "?" + q.Encode()
}

// isOwnReply reports whether a reply can come from the service, or from an emulator of it. Only a removal has a reply
// without content.
func isOwnReply(reply *http.Response) bool {
	for key := range reply.Header {
		if strings.HasPrefix(key, "X-Goog-") || key == "X-Guploader-Uploadid" {
			return true
		}
	}
	return reply.StatusCode != http.StatusOK || strings.HasPrefix(reply.Header.Get("Content-Type"), "application/json")
}

// send sends a request, and returns the reply if it says that the request was done. The caller closes its body.
func (c *bucketClient) send(
	ctx context.Context, method, address, contentType string, body []byte,
) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	reply, err := c.http.Stream(r)
	if err != nil {
		return nil, err
	}
	if reply.StatusCode < 300 {
		return reply, nil
	}
	defer reply.Body.Close()
	if err = googleapi.CheckResponse(reply); err == nil { // a redirection that was not followed
		err = &googleapi.Error{Code: reply.StatusCode, Header: reply.Header}
	}
	if reply.StatusCode == http.StatusNotFound {
		err = fmt.Errorf("%w: %w", errNotFound, err)
	}
	return nil, err
}

// sendForJSON sends a request and decodes the reply into result, unless that is nil.
func (c *bucketClient) sendForJSON(ctx context.Context, method, address, contentType string, body []byte, result any,
) error {
	reply, err := c.send(ctx, method, address, contentType, body)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	data, err := io.ReadAll(reply.Body) // to its end, so that the connection can be used again
	switch {
	case err != nil:
		return err
	case reply.StatusCode == http.StatusNoContent && result == nil:
		return nil
	case result == nil:
		result = new(json.RawMessage) // some emulators answer a removal with content
	}
	return json.Unmarshal(data, result)
}

// readObject reads the content of an object, at most limit bytes of it.
func (c *bucketClient) readObject(ctx context.Context, name string, limit int64) ([]byte, objectHead, error) {
	var head objectHead
	address := c.endpoint + "/" + url.PathEscape(c.bucket) + "/" + url.PathEscape(name)
	reply, err := c.send(ctx, http.MethodGet, address, "", nil)
	if err != nil {
		return nil, head, err
	}
	defer reply.Body.Close()
	data, err := io.ReadAll(io.LimitReader(reply.Body, limit))
	if err != nil {
		return nil, head, err
	}
	var err1, err2 error
	head.generation, err1 = strconv.ParseInt(reply.Header.Get("X-Goog-Generation"), 10, 64)
	head.metageneration, err2 = strconv.ParseInt(reply.Header.Get("X-Goog-Metageneration"), 10, 64)
	for key := range reply.Header {
		head.hasMetadata = head.hasMetadata || strings.HasPrefix(key, "X-Goog-Meta-")
	}
	if err := errors.Join(err1, err2); err != nil {
		return nil, head, fmt.Errorf("the reply has no version of the object: %w", err)
	}
	return data, head, nil
}

// readAttrs reads the attributes of an object.
func (c *bucketClient) readAttrs(ctx context.Context, name string, when conditions) (*objectAttrs, error) {
	q := url.Values{"alt": {"json"}}
	when.addTo(q)
	var a objectAttrs
	return &a, c.sendForJSON(ctx, http.MethodGet, c.objectURL(name, q), "", nil, &a)
}

// castagnoli is made when it is needed first, because that takes longer than to start all else of this package.
var castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

// writeObject makes or replaces an object, and returns its attributes. Of content, data, contentType and metadata
// count.
func (c *bucketClient) writeObject(
	ctx context.Context, name string, when conditions, content objectContent,
) (*objectAttrs, error) {
	// The service refuses data that do not have this checksum, such as a part of them.
	sum := binary.BigEndian.AppendUint32(nil, crc32.Checksum(content.data, castagnoli()))
	attrs, err := json.Marshal(map[string]any{
		"name": name, "bucket": c.bucket, "contentType": content.contentType, "cacheControl": "no-store",
		"metadata": content.metadata, "crc32c": base64.StdEncoding.EncodeToString(sum),
	})
	if err != nil {
		return nil, err
	}
	var body bytes.Buffer
	parts := multipart.NewWriter(&body)
	for _, part := range []struct {
		contentType string
		data        []byte
	}{{"application/json; charset=utf-8", attrs}, {content.contentType, content.data}} {
		w, err := parts.CreatePart(textproto.MIMEHeader{"Content-Type": {part.contentType}})
		if err != nil {
			return nil, err
		}
		_, _ = w.Write(part.data) // a buffer takes everything
	}
	_ = parts.Close()
	q := url.Values{"alt": {"json"}, "uploadType": {"multipart"}, "name": {name}}
	when.addTo(q)
	address := c.endpoint + "/upload/storage/v1/b/" + url.PathEscape(c.bucket) + "/o?" + q.Encode()
	var a objectAttrs
	return &a, c.sendForJSON(ctx, http.MethodPost, address, "multipart/related; boundary="+parts.Boundary(),
		body.Bytes(), &a)
}

// deleteObject removes an object.
func (c *bucketClient) deleteObject(ctx context.Context, name string, when conditions) error {
	q := url.Values{"alt": {"json"}}
	when.addTo(q)
	return c.sendForJSON(ctx, http.MethodDelete, c.objectURL(name, q), "", nil, nil)
}

// listNames returns one page of the names that begin with prefix, from startOffset on, and the token of the next page,
// which is empty after the last one.
func (c *bucketClient) listNames(
	ctx context.Context, prefix, startOffset, token string, size int,
) (names []string, next string, err error) {
	q := url.Values{"alt": {"json"}, "prefix": {prefix}, "maxResults": {strconv.Itoa(size)},
		"fields": {"items(name),nextPageToken"}}
	if startOffset != "" {
		q.Set("startOffset", startOffset)
	}
	if token != "" {
		q.Set("pageToken", token)
	}
	var page struct {
		Items []struct {
			Name string `json:"name"`
		} `json:"items"`
		NextPageToken string `json:"nextPageToken"`
	}
	if err := c.sendForJSON(ctx, http.MethodGet, c.listURL(q, ""), "", nil, &page); err != nil {
		return nil, "", err
	}
	for _, item := range page.Items {
		names = append(names, item.Name)
	}
	return names, page.NextPageToken, nil
}

// bucketAttrs are the settings of a bucket that matter here.
type bucketAttrs struct {
	StorageClass          string `json:"storageClass"`
	DefaultEventBasedHold bool   `json:"defaultEventBasedHold"`
	Versioning            struct {
		Enabled bool `json:"enabled"`
	} `json:"versioning"`
	RetentionPolicy struct {
		Seconds int64 `json:"retentionPeriod,string"`
	} `json:"retentionPolicy"`
	SoftDeletePolicy struct {
		Seconds int64 `json:"retentionDurationSeconds,string"`
	} `json:"softDeletePolicy"`
	Lifecycle struct {
		Rules []lifecycleRule `json:"rule"`
	} `json:"lifecycle"`
}

// lifecycleRule is a rule by which the service changes or removes objects.
type lifecycleRule struct {
	Action struct {
		Type string `json:"type"`
	} `json:"action"`
	Condition struct {
		Age                     int64    `json:"age"` // in days
		MatchesPrefix           []string `json:"matchesPrefix"`
		IsLive                  *bool    `json:"isLive"`
		NumNewerVersions        int64    `json:"numNewerVersions"`
		DaysSinceNoncurrentTime int64    `json:"daysSinceNoncurrentTime"`
		NoncurrentTimeBefore    string   `json:"noncurrentTimeBefore"`
	} `json:"condition"`
}

// readBucket reads the settings of the bucket.
func (c *bucketClient) readBucket(ctx context.Context) (*bucketAttrs, error) {
	var b bucketAttrs
	address := c.endpoint + "/storage/v1/b/" + url.PathEscape(c.bucket) + "?alt=json"
	return &b, c.sendForJSON(ctx, http.MethodGet, address, "", nil, &b)
}
