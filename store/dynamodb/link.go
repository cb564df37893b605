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

// link is the way to one table: it makes each request once, and hears the service's clock from every reply.
type link struct {
	client *sdk.Client
	name   string // the table's
	key    string // its partition key
	place  string // for people
	clock  *record.ServerClock
	closed context.Context
	close  context.CancelFunc
	after  func() // when it is closed
}

// tokensFall is for Info. A foreign client that puts an item, or anybody who removes it, takes the last token with it.
const tokensFall = "when an item is removed, or taken by a foreign client, within 3 s of its last grant"

// item is what stands under a key.
type item = map[string]types.AttributeValue

// answerTime is how long one request may take. A request that hangs is given up, and its outcome looked up by another.
const answerTime = 5 * time.Second

// hostsApart is how far the clocks of the service's hosts may lie apart.
const hostsApart = 100 * time.Millisecond

// tokenGap is beyond what the estimates of two clients can differ that have heard one reply each, on a slow link.
const tokenGap = 3 * time.Second

func newLink(client *sdk.Client, name, key string, hands driver.Clock) *link {
	if hands.Monotonic == nil {
		hands = driver.SystemClock
	}
	l := &link{name: name, key: key, clock: &record.ServerClock{Clock: hands, HostsApart: hostsApart}, after: func() {}}
	l.closed, l.close = context.WithCancel(context.Background())
	l.client = sdk.New(client.Options(), func(o *sdk.Options) {
		o.Retryer = once{}
		o.APIOptions = append(o.APIOptions[:len(o.APIOptions):len(o.APIOptions)], l.listen)
	})
	o := l.client.Options()
	l.place = "dynamodb://" + name
	if o.Region != "" {
		l.place += "?region=" + o.Region
	}
	return l
}

// listen has every reply, also of a refusal, heard by the clock.
func (l *link) listen(stack *middleware.Stack) error {
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

// once lets a request be made once. A second try of a write that took effect would be refused, and take the first for
// somebody else's. Only a request that was refused because our wall clock is wrong is signed again, by the service's.
type once struct{ aws.NopRetryer }

func (once) MaxAttempts() int { return 2 }

func (once) IsErrorRetryable(err error) bool {
	var skewed interface{ RetryableError() bool }
	var refusal smithy.APIError
	return errors.As(err, &skewed) && skewed.RetryableError() && errors.As(err, &refusal) && clockRefusals[refusal.ErrorCode()]
}

func (once) RetryDelay(int, error) (time.Duration, error) { return 0, nil }

var clockRefusals = map[string]bool{"InvalidSignatureException": true, "SignatureDoesNotMatch": true,
	"RequestTimeTooSkewed": true, "AuthFailure": true, "AccessDeniedException": true}

// request makes one request.
func request[In, Out any](ctx context.Context, l *link, do func(context.Context, *In, ...func(*sdk.Options)) (*Out, error), in *In) (*Out, error) {
	bounded, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	defer context.AfterFunc(l.closed, cancel)()
	if l.closed.Err() != nil {
		return nil, driver.ErrClosed
	}
	out, err := do(bounded, in)
	if err == nil {
		return out, nil
	}
	return nil, l.fault(ctx, err)
}

var errNoAnswer = errors.New("DynamoDB did not answer")

// unsent reports whether a request has certainly not been sent, since there was no connection to send it by.
func unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// look makes a request that changes nothing, once more if it had no answer: it may have met a connection that was dead already.
func look[In, Out any](ctx context.Context, l *link, do func(context.Context, *In, ...func(*sdk.Options)) (*Out, error), in *In) (*Out, error) {
	out, err := request(ctx, l, do, in)
	if errors.Is(err, errNoAnswer) {
		out, err = request(ctx, l, do, in)
	}
	return out, err
}

// Close ends the calls under way.
func (l *link) Close() error {
	l.close()
	l.after()
	return nil
}

func (l *link) id(key string) item       { return item{l.key: text(key)} }
func text(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }
func stringOf(v types.AttributeValue) string {
	if s, ok := v.(*types.AttributeValueMemberS); ok {
		return s.Value
	}
	return ""
}

// fault gives an error the form that the engine knows. A refused condition stays as it is.
func (l *link) fault(ctx context.Context, err error) error {
	var refusal smithy.APIError
	switch {
	case l.closed.Err() != nil:
		return driver.ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	case !errors.As(err, &refusal) && unsent(err):
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
			"or open it with create=true to have it made (%w)", driver.ErrInvalid, l.name, refusal)
	case "AccessDeniedException":
		return fmt.Errorf("%w: these credentials may not do dynamodb:%s on the table %q; allow it to them (%w)",
			driver.ErrDenied, operation, l.name, refusal)
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
