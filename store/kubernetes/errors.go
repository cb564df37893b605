package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/httpclient"
	"github.com/holdfast-go/holdfast/engine/record"
)

var (
	// errNotFound is wrapped by the error about an object that does not exist.
	errNotFound = errors.New("the object does not exist")
	// errBusy is wrapped by the error about a request that the server puts off.
	errBusy = errors.New("the server is busy")
	// errExpired says that a resource version, or the token of a page, is too old for the server.
	errExpired = errors.New("the resource version is too old")
	// errSilent ends a watch for which the server has no answer.
	errSilent = errors.New("the API server does not answer")
	// errCredentials is wrapped by the error about a token or a certificate that the server does not know.
	errCredentials = errors.New("the credentials are not valid here, or have expired")
)

// status is what the server says of a request that it refuses.
type status struct {
	Message string `json:"message"`
	Reason  string `json:"reason"`
	Code    int    `json:"code"`
	Details struct {
		Kind string `json:"kind"`
	} `json:"details"`
}

// unsentError is record.ErrUnsent in words of its own.
type unsentError struct{ error }

func (unsentError) Is(target error) bool { return target == record.ErrUnsent }

// explainError translates the error of a request without a reply.
func (c *client) explainError(err error) error {
	var op *net.OpError
	switch {
	case httpclient.ReplyErrorOf(err) != nil:
		return httpclient.ReplyErrorOf(err)
	case errors.As(err, &op) && op.Op == "dial":
		return unsentError{fmt.Errorf("the API server cannot be reached: %v", op)}
	case errors.Is(err, errConfig) && c.http.HasWorked():
		return unsentError{err}
	case errors.Is(err, errConfig):
		return fmt.Errorf("%w: %w", record.ErrUnsent, driverutil.RefuseStore(err))
	}
	// Not wrapped: a timeout of ours must not look like the caller's.
	return fmt.Errorf("the request failed: %v", err)
}

// explainRefusal translates a refusal into the driver's terms. What it does not know is an error without a meaning: a
// write may then have taken effect, so the engine reads, and tries again. Among these are a timeout (504), and all
// else of 5xx.
func (c *client) explainRefusal(verb string, reply *http.Response) error {
	data, _ := io.ReadAll(reply.Body)
	var s status
	if json.Unmarshal(data, &s) != nil || s.Message == "" {
		s.Message = strings.TrimSpace(string(data[:min(len(data), 200)]))
	}
	says := reply.Status
	if s.Message != "" {
		says = strings.ToValidUTF8(s.Message, "?")
	}
	switch code := reply.StatusCode; {
	case code == http.StatusConflict && (s.Reason == "Conflict" || s.Reason == "AlreadyExists"):
		c.http.CredentialsAccepted()
		return record.ErrConflict
	case code == http.StatusNotFound && s.Details.Kind == "namespaces":
		return driverutil.RefuseStore(fmt.Errorf("there is no namespace %s; create it, or correct its name (%s)",
			c.namespace, says))
	case code == http.StatusNotFound && s.Details.Kind == "leases":
		c.http.CredentialsAccepted()
		return fmt.Errorf("%w (%s)", errNotFound, says)
	case code == http.StatusNotFound:
		return fmt.Errorf("%w: the server has no leases of coordination.k8s.io/v1, or is no Kubernetes: %s",
			driver.ErrUnsupported, says)
	case code == http.StatusGone:
		return fmt.Errorf("%w (%s)", errExpired, says)
	case code == http.StatusTooManyRequests:
		return fmt.Errorf("%w: %s", errBusy, says)
	case code == http.StatusUnauthorized:
		return c.http.CredentialsRefused(fmt.Errorf("%w: %s", errCredentials, says)) // also if a server cannot ask who we are
	case code == http.StatusForbidden && strings.Contains(says, "exceeded quota"):
		return driverutil.RefuseStore(fmt.Errorf("the namespace has no room: %s", says))
	case code == http.StatusForbidden && !strings.Contains(says, " cannot "+verb): // a webhook, or a namespace that is ending
		return fmt.Errorf("%w: %s", driver.ErrDenied, says)
	case code == http.StatusForbidden:
		return fmt.Errorf("%w: %s", driverutil.LackPermission(verb, "leases.coordination.k8s.io in the namespace "+c.namespace),
			says)
	case code == http.StatusBadRequest, code == http.StatusUnprocessableEntity,
		code == http.StatusRequestEntityTooLarge:
		return fmt.Errorf("%w: %s", driver.ErrInvalid, says)
	case code == http.StatusMethodNotAllowed, code == http.StatusNotImplemented, code < 400:
		return fmt.Errorf("%w: the server does not know this request: %s", driver.ErrUnsupported, says)
	}
	return fmt.Errorf("%s: %s", reply.Status, says)
}
