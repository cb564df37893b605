package consul

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/httpclient"
	"github.com/holdfast-go/holdfast/engine/record"
)

// errLockDelayed says that a key cannot be locked for a while, because the session that held it was invalidated.
var errLockDelayed = errors.New("a lock-delay bars the key")

// unsentError is the error of a request that was not sent, for lack of a connection.
type unsentError struct{ error }

func (u unsentError) Unwrap() []error { return []error{u.error, record.ErrUnsent} }

// explainError turns an error of Consul's client into one that the engines know. Most refusals come as text alone.
func (t *nodeStore) explainError(err error) error {
	for inURL := (*url.Error)(nil); errors.As(err, &inURL); {
		err = inURL.Err // it names the agent, which the store's own name does as well
	}
	var dial *net.OpError
	var certificate *tls.CertificateVerificationError
	switch {
	case err == nil || driverutil.IsFinal(err) || httpclient.ReplyErrorOf(err) != nil:
		return err
	case t.life.Err() != nil:
		return driver.ErrClosed
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &certificate):
		return t.web.CertificateRefused(unsentError{fmt.Errorf("no TLS connection to Consul: %v", err)})
	case errors.As(err, &dial) && dial.Op == "dial":
		return unsentError{fmt.Errorf("no connection to Consul: %v", dial)}
	}
	switch text := err.Error(); {
	case strings.Contains(text, "gave HTTP response to HTTPS client"):
		return driverutil.RefuseStore(errors.New("no TLS connection to Consul: the agent does not use TLS on this port; " +
			"leave the tls options out"))
	case strings.Contains(text, "HTTP request to an HTTPS server"):
		return driverutil.RefuseStore(errors.New("the agent of Consul uses TLS on this port: set tls=true"))
	case containsAny(text, []string{"ACL not found", "response code: 401"}): // a token may be replaced, or not be known yet
		return t.web.CredentialsRefused(t.neededRules(agentMessage(err)))
	case containsAny(text, []string{"Permission denied", "lacks permission", "ACL support disabled",
		"response code: 403"}):
		return t.deniedError(agentMessage(err))
	case strings.Contains(text, "too large"), strings.Contains(text, "Invalid Session TTL"):
		return fmt.Errorf("%w: Consul says: %s", driver.ErrInvalid, agentMessage(err))
	default:
		return fmt.Errorf("the agent of Consul says: %s", agentMessage(err))
	}
}

// agentMessage is a message of the agent in one line, without what its client writes before it.
func agentMessage(err error) string {
	text := err.Error()
	var status api.StatusError
	if errors.As(err, &status) && status.Body != "" {
		text = status.Body
	}
	return strings.ReplaceAll(strings.TrimPrefix(strings.TrimSpace(text), "Failed request: "), "\n", " ")
}

// deniedError is the refusal for lack of a permission.
func (t *nodeStore) deniedError(why string) error {
	return fmt.Errorf("%w: %w", driver.ErrDenied, t.neededRules(why))
}

// neededRules is an error with the rules that suffice. Without a prefix, a rule for all keys would be far more than is
// needed.
func (t *nodeStore) neededRules(why string) error {
	prefix, locks := t.opts.Prefix, ""
	if prefix == "" {
		prefix, locks = reservedFolder, "the same for the keys of the locks, "
	}
	return fmt.Errorf("the agent of Consul says: %s; the token needs the rules key_prefix %q { policy = \"write\" }, %s"+
		"session %q { policy = \"write\" } and, unless that node is registered, node %q { policy = \"write\" }",
		why, prefix, locks, t.opts.Node, t.opts.Node)
}
