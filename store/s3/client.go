package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/httpclient"
	"github.com/holdfast-go/holdfast/engine/record"
)

// bucketClient sends the requests about one bucket, and learns the service's clock from the replies.
type bucketClient struct {
	client  *sdk.Client
	web     *httpclient.Client // sends its requests
	bucket  string
	clock   *record.ServerClock
	life    *driverutil.Lifetime
	onClose func()
	google  atomic.Bool // a reply came from Google's service
	minio   atomic.Bool // a reply came from MinIO
}

// requestTimeout is how long one request may take. After that another request finds out what became of it.
const requestTimeout = 5 * time.Second

// maxHostSkew is how far the clocks of the service's hosts may be apart. Behind one address there are many, and each
// reply may come from another one, with a Date by its own clock.
const maxHostSkew = 100 * time.Millisecond

// newBucketClient makes a client with the user's settings, except for retries, checksums and the default logger. It
// does not change the user's own client.
func newBucketClient(client *sdk.Client, bucket string, clock driver.Clock) *bucketClient {
	c := &bucketClient{bucket: bucket, clock: &record.ServerClock{Clock: clock, HostsApart: maxHostSkew},
		life: driverutil.NewLifetime(), onClose: func() {}}
	c.client = sdk.New(client.Options(), func(o *sdk.Options) {
		o.Retryer = singleTry{}
		o.RetryMaxAttempts = 0 // of singleTry, whatever the environment says
		c.web = httpclient.New(o.HTTPClient, httpclient.Service{Name: "S3", IsOwn: c.isOwnReply, Clock: clock,
			AddDate: c.clock.AddDate})
		o.HTTPClient = c.web
		o.Logger = quietLogger(o.Logger)
		// The signature covers the content. Further checksums are not known to all services.
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		o.DisableLogOutputChecksumValidationSkipped = true
	})
	return c
}

// quietLogger turns off the logger that the SDK's configuration sets by default, which writes to standard error. Our
// errors say what matters.
func quietLogger(l logging.Logger) logging.Logger {
	var standard *log.Logger
	switch l := l.(type) {
	case *logging.StandardLogger:
		standard = l.Logger
	case logging.StandardLogger:
		standard = l.Logger
	}
	if standard != nil && standard.Writer() == os.Stderr {
		return logging.Nop{}
	}
	return l
}

// isOwnReply reports whether a reply can come from the service, and learns which service it is. Not all services that
// speak the protocol number their requests, as S3 does.
func (c *bucketClient) isOwnReply(reply *http.Response) bool {
	isNamed := false
	for key := range reply.Header {
		isNamed = isNamed || strings.HasPrefix(key, "X-Amz-") || strings.HasPrefix(key, "X-Goog-") || key == "X-Guploader-Uploadid"
	}
	if !isNamed && reply.Header.Get("Etag") == "" && reply.StatusCode == http.StatusOK &&
		!strings.Contains(reply.Header.Get("Content-Type"), "xml") {
		return false
	}
	if reply.Header.Get("X-Guploader-Uploadid") != "" || reply.Header.Get("X-Goog-Generation") != "" {
		c.google.Store(true)
	}
	if strings.HasPrefix(reply.Header.Get("Server"), "MinIO") {
		c.minio.Store(true)
	}
	return true
}

// singleTry sends a request once. If a write took effect and were sent again, it would be refused, and its own effect
// would look like that of another client. Only a request that was refused because our wall clock is wrong is sent
// again, signed with the service's time.
type singleTry struct{ aws.NopRetryer }

// MaxAttempts allows one repetition, which IsErrorRetryable limits to wrong clocks.
func (singleTry) MaxAttempts() int { return 2 }

// IsErrorRetryable reports whether the service refused the signature because of our wall clock. The SDK has learned the
// difference from the reply, and signs with the right time when it sends the request again.
func (singleTry) IsErrorRetryable(err error) bool {
	var skewed interface{ RetryableError() bool }
	var refusal smithy.APIError
	return errors.As(err, &skewed) && skewed.RetryableError() &&
		errors.As(err, &refusal) && clockRefusals[refusal.ErrorCode()]
}

func (singleTry) RetryDelay(int, error) (time.Duration, error) { return 0, nil }

var clockRefusals = map[string]bool{"RequestTimeTooSkewed": true, "RequestExpired": true, "SignatureDoesNotMatch": true,
	"InvalidSignatureException": true, "AuthFailure": true}

// apiCall is a method of the SDK's client.
type apiCall[In, Out any] func(context.Context, *In, ...func(*sdk.Options)) (*Out, error)

// sendRequest sends one request, bounded by requestTimeout and by the life of the store. needs names the permissions
// that it needs, for the error if they are missing. An error without a reply leaves open what became of a write: the
// engine then reads the object.
func sendRequest[In, Out any](
	ctx context.Context, c *bucketClient, needs string, do apiCall[In, Out], in *In,
) (*Out, error) {
	var out *Out
	err := c.callServer(ctx, needs, func(ctx context.Context) (err error) {
		out, err = do(ctx, in)
		return err
	})
	return out, err
}

// callServer runs a request and reads its reply, and translates its error.
func (c *bucketClient) callServer(ctx context.Context, needs string, request func(context.Context) error) error {
	return c.life.Call(ctx, requestTimeout, "the service", request, func(err error) error {
		return c.explainError(err, needs)
	})
}

// read runs a request that changes nothing, and sends it again at once if the service is in trouble or the connection
// breaks. A request that got no answer for a second is not sent again, nor one to a service that asks for fewer
// requests.
func (c *bucketClient) read(ctx context.Context, needs string, request func(context.Context) error) error {
	const maxTries = 3
	for tries, from := 1, c.clock.Clock.Now(); ; tries++ {
		err := c.callServer(ctx, needs, request)
		if err == nil || tries == maxTries || ctx.Err() != nil || c.clock.Clock.Since(from) > time.Second ||
			errors.Is(err, errNotFound) || errors.Is(err, record.ErrUnsent) || driverutil.IsFinal(err) || isThrottled(err) {
			return err
		}
	}
}

// object is the content of an object, and its version.
type object struct {
	data    []byte
	etag    string
	written time.Time // when, by the service's clock; zero if it does not say
}

// get reads an object, at most limit bytes of it. If there is none, the error is errNotFound.
func (c *bucketClient) get(ctx context.Context, key string, limit int64) (o object, err error) {
	in := &sdk.GetObjectInput{Bucket: &c.bucket, Key: &key}
	err = c.read(ctx, "s3:GetObject and s3:ListBucket", func(ctx context.Context) error {
		out, err := c.client.GetObject(ctx, in)
		if err != nil {
			return err
		}
		defer out.Body.Close()
		o.written = aws.ToTime(out.LastModified)
		o.data, err = io.ReadAll(io.LimitReader(out.Body, limit))
		if o.etag = aws.ToString(out.ETag); err == nil && o.etag == "" {
			err = errNoETag
		}
		return err
	})
	return o, err
}

// put writes an object if its ETag is that one, or if there is no object, for an empty ETag. It returns the new ETag.
// If the condition does not hold, the error is record.ErrConflict.
func (c *bucketClient) put(ctx context.Context, key, etag string, data []byte) (string, error) {
	in := &sdk.PutObjectInput{Bucket: &c.bucket, Key: &key, Body: bytes.NewReader(data),
		ContentType: aws.String("application/json"), CacheControl: aws.String("no-store")}
	if etag == "" {
		in.IfNoneMatch = aws.String("*")
	} else {
		in.IfMatch = &etag
	}
	out, err := sendRequest(ctx, c, "s3:PutObject", c.client.PutObject, in)
	switch {
	case errors.Is(err, errNotFound) && etag != "": // the answer to If-Match where there is no object
		return "", record.ErrConflict
	case err != nil:
		return "", err
	case aws.ToString(out.ETag) == "":
		return "", errNoETag // it has taken effect: the outcome is unknown
	}
	return *out.ETag, nil
}

// remove removes an object if its ETag is that one, or whatever it is, for an empty ETag. If there is none, the error
// is errNotFound, or nil.
func (c *bucketClient) remove(ctx context.Context, key, etag string) error {
	in := &sdk.DeleteObjectInput{Bucket: &c.bucket, Key: &key}
	if etag != "" {
		in.IfMatch = &etag
	}
	_, err := sendRequest(ctx, c, "s3:DeleteObject", c.client.DeleteObject, in)
	return err
}

// list returns one page of the keys that begin with prefix and come after a key, and the token of the next page, or "".
func (c *bucketClient) list(ctx context.Context, prefix, after, token string) (keys []string, next string, err error) {
	in := &sdk.ListObjectsV2Input{Bucket: &c.bucket, Prefix: &prefix, EncodingType: types.EncodingTypeUrl}
	switch {
	case token != "":
		in.ContinuationToken = &token
	case after != "":
		in.StartAfter = &after
	}
	var out *sdk.ListObjectsV2Output
	err = c.read(ctx, "s3:ListBucket", func(ctx context.Context) (err error) {
		out, err = c.client.ListObjectsV2(ctx, in)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	if next = aws.ToString(out.NextContinuationToken); next == "" && aws.ToBool(out.IsTruncated) {
		return nil, "", fmt.Errorf("%w: the service does not say how to continue a listing", driver.ErrUnsupported)
	}
	for _, o := range out.Contents {
		key := aws.ToString(o.Key)
		if out.EncodingType == types.EncodingTypeUrl {
			if key, err = url.QueryUnescape(key); err != nil {
				return nil, "", err
			}
		}
		if !strings.HasPrefix(key, prefix) {
			continue
		}
		keys = append(keys, key)
	}
	return keys, next, nil
}

// share returns a client of the same bucket that can be closed on its own.
func (c *bucketClient) share() *bucketClient {
	return &bucketClient{client: c.client, web: c.web, bucket: c.bucket, clock: c.clock, life: driverutil.NewLifetime(),
		onClose: func() {}}
}

// close ends the calls that are running. It does not close a client of the caller's.
func (c *bucketClient) close() {
	if c.life.End() {
		c.onClose()
	}
}
