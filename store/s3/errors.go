package s3

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/httpclient"
	"github.com/holdfast-go/holdfast/engine/record"
)

// errNotFound is wrapped by the error about an object, or a setting of a bucket, that does not exist.
var errNotFound = errors.New("the object does not exist")

// absentCodes say that an object, or a setting of a bucket, does not exist. Any other reply with status 404 says
// nothing about it: it may come from a proxy that does not find the service.
var absentCodes = map[string]bool{"NoSuchKey": true, "NoSuchLifecycleConfiguration": true,
	"ObjectLockConfigurationNotFoundError": true, "ReplicationConfigurationNotFoundError": true}

var errNoETag = errors.New("the service's reply has no ETag")

// explainError translates an error into the driver's terms. What it does not know stays as it is: a write may then have
// taken effect, so the engine reads, and tries again. Among these are 409 ConditionalRequestConflict, which says that
// another write came in between, and that the request is to be sent again; too many requests (429, and 503 SlowDown);
// and all else of 5xx.
func (c *bucketClient) explainError(err error, needs string) error {
	var refusal smithy.APIError
	var reply *smithyhttp.ResponseError
	status := 0
	if errors.As(err, &reply) && reply.Response != nil {
		status = reply.HTTPStatusCode()
	}
	switch {
	case httpclient.ReplyErrorOf(err) != nil:
		return httpclient.ReplyErrorOf(err)
	case status == 0 && httpclient.IsUnsent(err):
		return fmt.Errorf("%w: %v", record.ErrUnsent, err)
	case status == 0:
		// Not wrapped: a timeout of ours must not look like the caller's.
		return fmt.Errorf("the request failed: %v", err)
	case status >= 500 && status != http.StatusNotImplemented && status != http.StatusInsufficientStorage:
		return err
	case !errors.As(err, &refusal):
		refusal = &smithy.GenericAPIError{Code: http.StatusText(status), Message: err.Error()}
	}
	code, says := refusal.ErrorCode(), refusal.ErrorCode()
	if m := strings.TrimSpace(refusal.ErrorMessage()); m != "" {
		says += ": " + m
	}
	switch {
	case status == http.StatusPreconditionFailed:
		c.web.CredentialsAccepted()
		return record.ErrConflict
	case code == "NoSuchBucket":
		return driverutil.RefuseStore(fmt.Errorf("there is no bucket %s; create it, or correct its name (%s)",
			c.bucket, says))
	case status == http.StatusNotFound && absentCodes[code]:
		c.web.CredentialsAccepted()
		return fmt.Errorf("%w (%s)", errNotFound, says)
	case tryAgainCodes[code] || status == http.StatusConflict || status == http.StatusTooManyRequests:
		return err
	case code == "RequestTimeTooSkewed":
		return fmt.Errorf("%w: the clock of this machine is wrong: %s", driver.ErrDenied, says)
	case credentialCodes[code] || status == http.StatusUnauthorized:
		return c.web.CredentialsRefused(fmt.Errorf("the credentials are not valid here, or have expired: %s", says))
	case regionCodes[code] || status == http.StatusMovedPermanently:
		return fmt.Errorf("%w: the bucket %s is in %s: set region= to that (%s)", driver.ErrInvalid, c.bucket,
			regionOf(reply), says)
	case status == http.StatusInsufficientStorage || strings.Contains(code, "QuotaExceeded"):
		return driverutil.RefuseStore(fmt.Errorf("the service has no room: %s", says))
	case strings.HasPrefix(code, "KMS."):
		return driverutil.RefuseStore(fmt.Errorf("the key that encrypts the bucket %s cannot be used: %s", c.bucket,
			says))
	case code == "InvalidObjectState":
		return driverutil.RefuseStore(fmt.Errorf("the object was archived: no lifecycle rule may do that to locks: %s",
			says))
	case status == http.StatusForbidden:
		return fmt.Errorf("%w: %s", driverutil.LackPermission(needs, "the bucket "+c.bucket), says)
	case status == http.StatusNotImplemented || status == http.StatusMethodNotAllowed:
		return fmt.Errorf("%w: the service does not know this request: %s", driver.ErrUnsupported, says)
	case status == http.StatusBadRequest && strings.Contains(says, "Object Lock"):
		return driverutil.RefuseStore(fmt.Errorf("new objects of the bucket %s are retained; locks need objects "+
			"that can be replaced and removed: use a bucket without a default retention: %s", c.bucket, says))
	case status == http.StatusBadRequest:
		return fmt.Errorf("%w: %s", driver.ErrInvalid, says)
	}
	return err
}

// tryAgainCodes say that a request did not arrive as it was sent, with status 400.
var tryAgainCodes = map[string]bool{"RequestTimeout": true, "IncompleteBody": true, "BadDigest": true,
	"XAmzContentSHA256Mismatch": true, "SlowDown": true, "TooManyRequests": true, "TemporaryRedirect": true}

var credentialCodes = map[string]bool{"ExpiredToken": true, "ExpiredTokenException": true, "InvalidToken": true,
	"TokenRefreshRequired": true, "InvalidAccessKeyId": true, "InvalidClientTokenId": true,
	"SignatureDoesNotMatch": true,
	"InvalidSecurity":       true, "NotSignedUp": true, "CredentialsNotSupported": true, "RequestExpired": true}

var regionCodes = map[string]bool{"PermanentRedirect": true, "AuthorizationHeaderMalformed": true,
	"IllegalLocationConstraintException": true}

// regionOf returns the region that a refusal names.
func regionOf(reply *smithyhttp.ResponseError) string {
	if region := reply.Response.Header.Get("X-Amz-Bucket-Region"); region != "" {
		return "the region " + region
	}
	return "another region"
}

// isThrottled reports whether the service asks for fewer requests.
func isThrottled(err error) bool {
	var reply *smithyhttp.ResponseError
	return errors.As(err, &reply) && (reply.HTTPStatusCode() == http.StatusTooManyRequests ||
		reply.HTTPStatusCode() == http.StatusServiceUnavailable)
}
