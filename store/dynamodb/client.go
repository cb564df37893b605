package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// tableClient is the way to one table: it makes each request once, and hears the service's clock from every reply.
type tableClient struct {
	client       *sdk.Client
	tableName    string // the table's
	partitionKey string // its partition key
	displayURL   string // for people
	clock        *record.ServerClock
	closed       context.Context
	cancel       context.CancelFunc
	onClose      func() // when it is closed
}

// tokenRegression is for Info. A foreign client that puts an item, or anybody who removes it, takes the last token with it.
const tokenRegression = "when an item is removed, or taken by a foreign client, within 3 s of its last grant"

// item is what stands under a key.
type item = map[string]types.AttributeValue

// requestTimeout is how long one request may take. A request that hangs is given up, and its outcome looked up by another.
const requestTimeout = 5 * time.Second

// maxHostSkew is how far the clocks of the service's hosts may lie apart.
const maxHostSkew = 100 * time.Millisecond

// tokenGap is beyond what the estimates of two clients can differ that have heard one reply each, on a slow link.
const tokenGap = 3 * time.Second

func newTableClient(client *sdk.Client, name, key string, hands driver.Clock) *tableClient {
	if hands.Monotonic == nil {
		hands = driver.SystemClock
	}
	l := &tableClient{tableName: name, partitionKey: key, clock: &record.ServerClock{Clock: hands, HostsApart: maxHostSkew}, onClose: func() {}}
	l.closed, l.cancel = context.WithCancel(context.Background())
	l.client = sdk.New(client.Options(), func(o *sdk.Options) {
		o.Retryer = singleTry{}
		o.APIOptions = append(o.APIOptions[:len(o.APIOptions):len(o.APIOptions)], l.addClockMiddleware)
	})
	o := l.client.Options()
	l.displayURL = "dynamodb://" + name
	if o.Region != "" {
		l.displayURL += "?region=" + o.Region
	}
	return l
}

// addClockMiddleware has every reply, also of a refusal, heard by the clock.
func (l *tableClient) addClockMiddleware(stack *middleware.Stack) error {
	return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("HoldfastClock", func(
		ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler,
	) (middleware.DeserializeOutput, middleware.Metadata, error) {
		from := l.clock.Clock.Now()
		out, meta, err := next.HandleDeserialize(ctx, in)
		if r, ok := out.RawResponse.(*smithyhttp.Response); ok && r.Header.Get("Age") == "" {
			if date, err := smithyhttp.ParseTime(r.Header.Get("Date")); err == nil {
				l.clock.AddDate(date, from, l.clock.Clock.Now())
			}
		}
		return out, meta, err
	}), middleware.After)
}

// singleTry lets a request be made once. A second try of a write that took effect would be refused, and take the first for
// somebody else's. Only a request that was refused because our wall clock is wrong is signed again, by the service's.
type singleTry struct{ aws.NopRetryer }

func (singleTry) MaxAttempts() int { return 2 }

func (singleTry) IsErrorRetryable(err error) bool {
	var skewed interface{ RetryableError() bool }
	var refusal smithy.APIError
	return errors.As(err, &skewed) && skewed.RetryableError() && errors.As(err, &refusal) && clockRefusals[refusal.ErrorCode()]
}

func (singleTry) RetryDelay(int, error) (time.Duration, error) { return 0, nil }

var clockRefusals = map[string]bool{"InvalidSignatureException": true, "SignatureDoesNotMatch": true,
	"RequestTimeTooSkewed": true, "AuthFailure": true, "AccessDeniedException": true}

// sendRequest makes one request.
func sendRequest[In, Out any](ctx context.Context, l *tableClient, do func(context.Context, *In, ...func(*sdk.Options)) (*Out, error), in *In) (*Out, error) {
	bounded, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	defer context.AfterFunc(l.closed, cancel)()
	if l.closed.Err() != nil {
		return nil, driver.ErrClosed
	}
	out, err := do(bounded, in)
	if err == nil {
		return out, nil
	}
	return nil, l.explainError(ctx, err)
}

var errNoAnswer = errors.New("DynamoDB did not answer")

// isUnsent reports whether a request has certainly not been sent, since there was no connection to send it by.
func isUnsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// sendRead makes a request that changes nothing, once more if it had no answer: it may have met a connection that was dead already.
func sendRead[In, Out any](ctx context.Context, l *tableClient, do func(context.Context, *In, ...func(*sdk.Options)) (*Out, error), in *In) (*Out, error) {
	out, err := sendRequest(ctx, l, do, in)
	if errors.Is(err, errNoAnswer) {
		out, err = sendRequest(ctx, l, do, in)
	}
	return out, err
}

// Close ends the calls under way.
func (l *tableClient) Close() error {
	l.cancel()
	l.onClose()
	return nil
}

func (l *tableClient) itemKey(key string) item { return item{l.partitionKey: textValue(key)} }
func textValue(s string) types.AttributeValue  { return &types.AttributeValueMemberS{Value: s} }
func stringOf(v types.AttributeValue) string {
	if s, ok := v.(*types.AttributeValueMemberS); ok {
		return s.Value
	}
	return ""
}

// explainError gives an error the form that the engine knows. A refused condition stays as it is.
func (l *tableClient) explainError(ctx context.Context, err error) error {
	var refusal smithy.APIError
	switch {
	case l.closed.Err() != nil:
		return driver.ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	case !errors.As(err, &refusal) && isUnsent(err):
		return fmt.Errorf("%w: %w: %v", errNoAnswer, record.ErrUnsent, err)
	case !errors.As(err, &refusal):
		return fmt.Errorf("%w: %v", errNoAnswer, err) // not wrapped: a time-out of ours is not the caller's
	}
	operation := "request"
	if op := (*smithy.OperationError)(nil); errors.As(err, &op) {
		operation = op.Operation()
	}
	switch code := refusal.ErrorCode(); code {
	case "ConditionalCheckFailedException":
		return refusal
	case "ResourceNotFoundException":
		return fmt.Errorf("%w: there is no table %q in this region and account: correct the table or the region, "+
			"or open it with create=true to have it made (%w)", driver.ErrInvalid, l.tableName, refusal)
	case "AccessDeniedException":
		return fmt.Errorf("%w: these credentials may not do dynamodb:%s on the table %q; allow it to them (%w)",
			driver.ErrDenied, operation, l.tableName, refusal)
	case "UnrecognizedClientException", "InvalidSignatureException", "SignatureDoesNotMatch", "MissingAuthenticationTokenException",
		"IncompleteSignatureException", "ExpiredTokenException", "InvalidClientTokenId", "AuthFailure", "OptInRequired":
		return fmt.Errorf("%w: these credentials are not good in this region (%w)", driver.ErrDenied, refusal)
	case "ValidationException":
		if strings.Contains(refusal.ErrorMessage(), "Item size") {
			return fmt.Errorf("%w: its item, with what others keep in it, is larger than DynamoDB takes (%w)", driver.ErrQueueFull, refusal)
		}
		return fmt.Errorf("%w: dynamodb:%s: %w", driver.ErrInvalid, operation, refusal)
	default:
		return fmt.Errorf("dynamodb:%s: %w", operation, refusal)
	}
}
