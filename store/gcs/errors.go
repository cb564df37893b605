package gcs

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"golang.org/x/oauth2"
	"google.golang.org/api/googleapi"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/httpclient"
	"github.com/holdfast-go/holdfast/engine/record"
)

// explainError translates an error into the driver's terms. An error that it does not know stays as it is: then the
// engine reads, and tries again.
func (t *table) explainError(err error, needs string) error {
	var refusal *googleapi.Error
	var noToken *oauth2.RetrieveError
	switch {
	case httpclient.ReplyErrorOf(err) != nil:
		return httpclient.ReplyErrorOf(err)
	case errors.As(err, &noToken) && isFinalStatus(noToken.Response):
		return t.bucket.http.CredentialsRefused(fmt.Errorf("no access token is given for these credentials; were they "+
			"deleted, or disabled? (%w)", err))
	case !errors.As(err, &refusal) && httpclient.IsUnsent(err):
		return fmt.Errorf("%w: %v", record.ErrUnsent, err)
	case !errors.As(err, &refusal):
		return err
	}
	says := strings.TrimSpace(refusal.Message)
	if says == "" {
		says = http.StatusText(refusal.Code)
	}
	switch refusal.Code {
	case http.StatusPreconditionFailed, http.StatusNotModified: // the second is the answer to a read with a precondition
		t.bucket.http.CredentialsAccepted()
		return record.ErrConflict
	case http.StatusNotFound:
		if strings.Contains(refusal.Error(), "bucket does not exist") {
			return driverutil.RefuseStore(fmt.Errorf("there is no bucket %s; create it, or correct its name", t.bucketName))
		}
		t.bucket.http.CredentialsAccepted()
	case http.StatusUnauthorized:
		return t.bucket.http.CredentialsRefused(fmt.Errorf("the credentials are missing or not valid: %s", says))
	case http.StatusForbidden:
		if isRetained(refusal) {
			return driverutil.RefuseStore(fmt.Errorf("a retention policy of the bucket %s, or a hold, keeps its objects; locks "+
				"need objects that can be replaced and removed: use a bucket without: %s", t.bucketName, says))
		}
		if !isRateLimited(refusal) {
			return fmt.Errorf("%w: %s", driverutil.LackPermission(needs, "the bucket "+t.bucketName), says)
		}
	case http.StatusBadRequest:
		return fmt.Errorf("%w: %s", driver.ErrInvalid, says)
	}
	return err
}

// isFinalStatus reports whether a service of access tokens refuses one for good.
func isFinalStatus(r *http.Response) bool {
	return r != nil && r.StatusCode >= 400 && r.StatusCode < 500 && r.StatusCode != http.StatusRequestTimeout &&
		r.StatusCode != http.StatusTooManyRequests
}

// isRetained reports whether a 403 means that nobody may replace or remove the object.
func isRetained(e *googleapi.Error) bool {
	for _, item := range e.Errors {
		if item.Reason == "retentionPolicyNotMet" || item.Reason == "objectUnderActiveHold" {
			return true
		}
	}
	return false
}

// isRateLimited reports whether a 403 means that there were too many requests, and not that a permission is missing.
// The engine then tries again, as it does after a 429.
func isRateLimited(e *googleapi.Error) bool {
	for _, item := range e.Errors {
		if strings.Contains(item.Reason, "imitExceeded") || item.Reason == "quotaExceeded" {
			return true
		}
	}
	return false
}
