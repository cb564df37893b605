package azure

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/httpclient"
	"github.com/holdfast-go/holdfast/engine/record"
)

// credentialsError is about credentials that could not be had for a request, which was not sent.
type credentialsError struct{ err error }

func (e *credentialsError) Error() string { return e.err.Error() }

// conflictCodes say that a condition does not hold. A create that loses is 409, and all else that loses is 412; both
// have other meanings, too, and so does the status 404.
var conflictCodes = map[string]bool{"ConditionNotMet": true, "TargetConditionNotMet": true, "BlobAlreadyExists": true}

// credentialCodes say that the service does not know the credentials, takes them for expired, or admits no requests
// from this machine's address.
var credentialCodes = map[string]bool{"AuthenticationFailed": true, "InvalidAuthenticationInfo": true,
	"NoAuthenticationInformation": true, "AuthorizationFailure": true}

// storeProblems are what waiting does not help against.
var storeProblems = map[string]string{
	"ContainerNotFound":     "there is no such container; create it, or correct its name",
	"ContainerBeingDeleted": "the container is being deleted; use another one",
	"ContainerDisabled":     "an administrator has disabled the container",
	"AccountIsDisabled":     "the account is disabled",
	"ResourceNotFound":      "there is no such container or account; correct the address",
	"KeyBasedAuthenticationNotPermitted": "the account permits no keys: use an identity with the role Storage Blob Data " +
		"Contributor",
	"BlobImmutableDueToPolicy":    keptText,
	"BlobImmutableDueToLegalHold": keptText,
	"BlobArchived": "the blob of a lock was archived: no lifecycle rule may do that; write the rule for " +
		"other blobs",
	"InvalidBlobType": "the blob of a lock is a page blob or an append blob of another program; remove it",
}

const keptText = "an immutability policy or a legal hold keeps its blobs; locks need blobs that can be replaced and removed: " +
	"use a container without"

// leaseCodes are the answers to a request about a blob of which another client has a lease, or to one whose own lease
// has ended.
var leaseCodes = map[string]bool{"LeaseIdMissing": true, "LeaseIdMismatchWithBlobOperation": true,
	"LeaseNotPresentWithBlobOperation": true, "LeaseAlreadyPresent": true, "LeaseIdMismatchWithLeaseOperation": true,
	"LeaseLost": true, "LeaseNotPresentWithLeaseOperation": true, "LeaseIsBrokenAndCannotBeRenewed": true,
	"LeaseIsBreakingAndCannotBeAcquired": true, "LeaseAlreadyBroken": true, "LeaseIsBreakingAndCannotBeChanged": true}

// explainError translates an error into the driver's terms. An error that it does not know stays as it is: a write may
// then have taken effect, so the engine reads, and tries again. Among these are a refusal without a code, which comes
// from something in between, too many requests (503 ServerBusy), and all else of 5xx.
func (c *containerClient) explainError(err error, r request) error {
	var refused *refusal
	var noCredentials *credentialsError
	switch {
	case httpclient.ReplyErrorOf(err) != nil:
		return httpclient.ReplyErrorOf(err)
	case errors.As(err, &noCredentials):
		return c.explainCredentials(noCredentials.err)
	case !errors.As(err, &refused) && httpclient.IsUnsent(err):
		return fmt.Errorf("%w: %v", record.ErrUnsent, err)
	case !errors.As(err, &refused) || refused.code == "" || refused.status >= 500:
		return err
	case conflictCodes[refused.code]:
		c.web.CredentialsAccepted()
		return record.ErrConflict
	case refused.code == "BlobNotFound":
		c.web.CredentialsAccepted()
		return errNotFound
	case leaseCodes[refused.code]:
		c.web.CredentialsAccepted()
		return driverutil.RefuseStore(fmt.Errorf("another program has leased the blob %s of the container %s; release or "+
			"break that lease (%w)", r.blob, c.container, refused))
	case credentialCodes[refused.code] || refused.status == http.StatusUnauthorized:
		return c.web.CredentialsRefused(fmt.Errorf("the credentials are missing, not valid here, or have expired, "+
			"or the account's network rules exclude this machine: %s", refused))
	case storeProblems[refused.code] != "":
		return driverutil.RefuseStore(fmt.Errorf("the container %s: %s (%s)", c.container, storeProblems[refused.code],
			refused))
	case refused.status == http.StatusForbidden:
		return fmt.Errorf("%w: %s", driverutil.LackPermission(r.needs, "the container "+c.container), refused)
	case refused.status == http.StatusBadRequest || refused.status == http.StatusRequestEntityTooLarge:
		return fmt.Errorf("%w: %s", driver.ErrInvalid, refused)
	}
	return err
}

// explainCredentials is about credentials that could not be had: the machine's own may be unreachable for a moment.
func (c *containerClient) explainCredentials(err error) error {
	var noReply net.Error
	if errors.As(err, &noReply) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return fmt.Errorf("%w: no credentials: %v", record.ErrUnsent, err)
	}
	return c.web.CredentialsRefused(fmt.Errorf("no credentials for Azure Storage: %w", err))
}
