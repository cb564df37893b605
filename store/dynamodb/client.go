package dynamodb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/httpclient"
	"github.com/holdfast-go/holdfast/engine/record"
)

// tableClient sends requests to one table. It sends each request once, and learns the service's clock from
// every reply.
type tableClient struct {
	client       *sdk.Client
	web          *httpclient.Client // sends its requests
	tableName    string
	partitionKey string
	hasSortKey   bool   // for LayoutLedger
	displayURL   string // the table and the region, without secrets
	clock        *record.ServerClock
	life         *driverutil.Lifetime
	onClose      func() // called by Close
}

// tokenRegression is for Info: a foreign client that puts an item, or anyone who removes one, removes the last token.
const tokenRegression = "when an item is removed, or taken by a foreign client, within 3 s of its last grant"

// item is the attributes of an item.
type item = map[string]types.AttributeValue

// requestTimeout is how long one request may take. After that another request finds out what became of it.
const requestTimeout = 5 * time.Second

// maxHostSkew is how far the clocks of the service's hosts may differ. Behind one address there are many, and each
// reply may come from another one, with a Date by its own clock. AWS makes no promise about them.
const maxHostSkew = 100 * time.Millisecond

// tokenGap is more than the estimates of the service's clock of two clients can differ, if each has seen one
// reply on a slow network.
const tokenGap = 3 * time.Second

// newTableClient makes a client with the user's settings, except for retries and the default logger. It
// does not change the user's own client.
func newTableClient(client *sdk.Client, name string, opts *Options) *tableClient {
	clock := opts.Clock
	if clock.Monotonic == nil {
		clock = driver.SystemClock
	}
	l := &tableClient{tableName: name, partitionKey: opts.partitionKey(), hasSortKey: opts.Layout == LayoutLedger,
		onClose: func() {},
		clock:   &record.ServerClock{Clock: clock, HostsApart: maxHostSkew}, life: driverutil.NewLifetime()}
	l.client = sdk.New(client.Options(), func(o *sdk.Options) {
		o.Retryer = singleTry{}
		// DynamoDB has no function for its time in an expression, so the Date of replies, in whole seconds, is all
		// that a client learns of the service's clock.
		l.web = httpclient.New(o.HTTPClient, httpclient.Service{Name: "DynamoDB", IsOwn: isOwnReply, IsOwnBody: isOwnBody,
			Clock: clock, AddDate: l.clock.AddDate})
		o.HTTPClient = l.web
		o.Logger = quietLogger(o.Logger)
	})
	o := l.client.Options()
	l.displayURL = "dynamodb://" + name
	if o.Region != "" {
		l.displayURL += "?region=" + o.Region
	}
	return l
}

// quietLogger turns off the logger that the SDK's configuration sets by default, which writes to standard
// error. Our errors say what matters.
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

// isOwnReply reports whether a reply can come from DynamoDB. Some services that speak its protocol number no requests.
func isOwnReply(reply *http.Response) bool {
	return reply.Header.Get("X-Amzn-Requestid") != "" ||
		strings.HasPrefix(reply.Header.Get("Content-Type"), "application/x-amz-json-")
}

// isOwnBody reports whether the body of a reply can come from DynamoDB: it is an object in JSON, if need be {}.
func isOwnBody(_ *http.Response, body []byte) bool {
	var object map[string]json.RawMessage
	return json.Unmarshal(body, &object) == nil && object != nil
}

// singleTry sends a request once. If a write took effect and were sent again, it would be refused, and its own effect
// would look like that of another client. Only a request that was refused because our wall clock is wrong is sent
// again, signed with the service's time.
type singleTry struct{ aws.NopRetryer }

// MaxAttempts allows one repetition, which IsErrorRetryable limits to wrong clocks.
func (singleTry) MaxAttempts() int { return 2 }

// IsErrorRetryable reports whether the service refused the signature because of our wall clock. The SDK has
// learned the difference from the reply, and signs with the right time when it sends the request again.
func (singleTry) IsErrorRetryable(err error) bool {
	var skewed interface{ RetryableError() bool }
	var refusal smithy.APIError
	return errors.As(err, &skewed) && skewed.RetryableError() &&
		errors.As(err, &refusal) && clockRefusals[refusal.ErrorCode()]
}

func (singleTry) RetryDelay(int, error) (time.Duration, error) { return 0, nil }

var clockRefusals = map[string]bool{"InvalidSignatureException": true, "SignatureDoesNotMatch": true,
	"RequestTimeTooSkewed": true, "AuthFailure": true, "AccessDeniedException": true}

// apiCall is a method of the SDK's client.
type apiCall[In, Out any] func(context.Context, *In, ...func(*sdk.Options)) (*Out, error)

// callServer sends one request, bounded by requestTimeout and by the life of the store. An error without a reply
// leaves open what became of a write, so the engine then reads the item: its version is a random text, which shows
// whether the write took effect.
func callServer[In, Out any](ctx context.Context, l *tableClient, do apiCall[In, Out], in *In) (*Out, error) {
	if l.life.Err() != nil {
		return nil, driver.ErrClosed
	}
	living, done := l.life.Bind(ctx)
	defer done()
	bounded, cancel := context.WithTimeout(living, requestTimeout)
	defer cancel()
	out, err := do(bounded, in)
	if err == nil {
		return out, nil
	}
	return nil, l.explainError(ctx, err)
}

var errNoAnswer = errors.New("DynamoDB did not answer")

// sendRead sends a request that changes nothing. It sends it again if it got no answer: the first may have
// used a connection that had broken. A write is not repeated like that: see singleTry.
func sendRead[In, Out any](ctx context.Context, l *tableClient, do apiCall[In, Out], in *In) (*Out, error) {
	out, err := callServer(ctx, l, do, in)
	if errors.Is(err, errNoAnswer) {
		out, err = callServer(ctx, l, do, in)
	}
	return out, err
}

// Close ends the calls that are running.
func (t *tableClient) Close() error {
	t.life.End()
	t.onClose()
	return nil
}

// share returns a client of the same table that can be closed on its own.
func (t *tableClient) share() *tableClient {
	c := *t
	c.life = driverutil.NewLifetime()
	c.onClose = func() {}
	return &c
}

// itemKey is the key of an item. Keys have one attribute, except with LayoutLedger: see ledger.rowKey.
func (t *tableClient) itemKey(key string) item { return item{t.partitionKey: textValue(key)} }
func textValue(s string) types.AttributeValue  { return &types.AttributeValueMemberS{Value: s} }
func stringOf(v types.AttributeValue) string {
	if s, ok := v.(*types.AttributeValueMemberS); ok {
		return s.Value
	}
	return ""
}

// explainError translates an error into the driver's terms. A failed condition stays as it is.
func (t *tableClient) explainError(ctx context.Context, err error) error {
	var refusal smithy.APIError
	switch {
	case t.life.Err() != nil:
		return driver.ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	case httpclient.ReplyErrorOf(err) != nil:
		return httpclient.ReplyErrorOf(err)
	case !errors.As(err, &refusal) && httpclient.IsUnsent(err):
		return fmt.Errorf("%w: %w: %v", errNoAnswer, record.ErrUnsent, err)
	case !errors.As(err, &refusal):
		return fmt.Errorf("%w: %v", errNoAnswer, err) // not wrapped: our timeout must not look like the caller's
	}
	operation := "request"
	if op := (*smithy.OperationError)(nil); errors.As(err, &op) {
		operation = op.Operation()
	}
	switch code := refusal.ErrorCode(); code {
	case "ConditionalCheckFailedException":
		t.web.CredentialsAccepted()
		return refusal
	case "ResourceNotFoundException":
		return fmt.Errorf("%w: there is no table %q in this region and account: correct the table or the region, "+
			"or open it with create=true to have it made (%w)", driver.ErrInvalid, t.tableName, refusal)
	case "AccessDeniedException":
		return fmt.Errorf("%w (%w)", driverutil.LackPermission("dynamodb:"+operation, "the table "+t.tableName), refusal)
	case "UnrecognizedClientException", "InvalidSignatureException", "SignatureDoesNotMatch", "MissingAuthenticationTokenException",
		"IncompleteSignatureException", "ExpiredTokenException", "InvalidClientTokenId", "AuthFailure", "OptInRequired":
		return t.web.CredentialsRefused(fmt.Errorf("AWS rejected these credentials in this region (%w)", refusal))
	case "ValidationException":
		if strings.Contains(refusal.ErrorMessage(), "Item size") {
			return fmt.Errorf("%w: its item, with what others keep in it, is larger than DynamoDB accepts (%w)",
				driver.ErrQueueFull, refusal)
		}
		return fmt.Errorf("%w: dynamodb:%s: %w", driver.ErrInvalid, operation, refusal)
	default:
		return fmt.Errorf("dynamodb:%s: %w", operation, refusal)
	}
}

// latestEnd is the service's time at which a claim of length d that begins now has certainly expired. It uses the
// latest time that the service's clock may show, and expiry is judged by the earliest: so whatever the error of the two
// estimates, no client ends a claim before its TTL has passed.
func (t *tableClient) latestEnd(d time.Duration) int64 {
	_, late, _ := t.clock.Bounds()
	return late + d.Microseconds()
}

// newLoop makes the loop of one call.
func (t *tableClient) newLoop(ttl time.Duration) *driverutil.RetryLoop {
	return &driverutil.RetryLoop{Clock: t.clock.Clock, Limit: driver.UnreachableTimeout(ttl),
		Pause: t.pauseBetweenTries}
}

// pauseBetweenTries waits for a random part of a time that grows to a second.
func (t *tableClient) pauseBetweenTries(ctx context.Context, tries int) error {
	longest := min(time.Second, 20*time.Millisecond<<min(tries, 10))
	return t.life.Sleep(ctx, longest/2+rand.N(longest/2))
}
