package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// The codes of refusals that the store handles and that nats.go does not name.
const (
	codeAccountLimits     jetstream.ErrorCode = 10002
	codeNoResources       jetstream.ErrorCode = 10023
	codeNoMemory          jetstream.ErrorCode = 10028
	codeNoStorage         jetstream.ErrorCode = 10047
	codeReplicasNeedPeers jetstream.ErrorCode = 10074
	codeStoreFailed       jetstream.ErrorCode = 10077
	codeSealed            jetstream.ErrorCode = 10109
)

// unsentError is the error of a request that has reached no server, or for which a server has reported that nobody
// answers its subject (no responders).
type unsentError struct{ error }

func (u unsentError) Unwrap() []error { return []error{u.error, record.ErrUnsent} }

// apiError is the refusal of a request by JetStream; nil: there is none in err.
func apiError(err error) *jetstream.APIError {
	var e jetstream.JetStreamError
	if errors.As(err, &e) && e.APIError() != nil {
		return e.APIError()
	}
	return nil
}

// missingBucketError says that the bucket does not exist.
type missingBucketError struct{ error }

func (m missingBucketError) Unwrap() error { return m.error }

func isMissingBucket(err error) bool {
	var missing missingBucketError
	return errors.As(err, &missing)
}

// checkConnected returns an error if a request cannot be sent now. Unless nats.ReconnectBufSize is negative, nats.go
// would keep it, and send it when the connection is made again. It still may if the connection is lost after this look.
func (t *table) checkConnected() error {
	switch status := t.conn().Status(); status {
	case nats.CONNECTED:
		return nil
	case nats.CLOSED, nats.DRAINING_SUBS, nats.DRAINING_PUBS:
		why := ""
		if err := t.conn().LastError(); err != nil {
			why = ": " + err.Error()
		}
		return driverutil.RefuseStore(unsentError{fmt.Errorf("the connection to NATS is closed%s; let it reconnect for "+
			"ever (nats.MaxReconnects(-1)), and close the store first", why)})
	default:
		why := ""
		if err := t.conn().LastError(); err != nil {
			why = ": " + err.Error()
		}
		return unsentError{driverutil.AddProblems(fmt.Errorf("there is no connection to NATS at present%s", why),
			t.opts.secrets)}
	}
}

// explainError translates the error of a request into the driver's terms; before is the last violation of a permission
// before it. What is not final may pass.
func (t *table) explainError(ctx context.Context, err error, subject string, before error) error {
	refused := apiError(err)
	var op *net.OpError
	switch {
	case driverutil.IsFinal(err), errors.Is(err, record.ErrUnsent), errors.Is(err, record.ErrConflict):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case refused != nil:
		return t.explainRefusal(refused)
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		return unsentError{fmt.Errorf("no NATS server answers for the bucket %s: its leader is missing, or JetStream is "+
			"not enabled", t.bucket)}
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionReconnecting),
		errors.As(err, &op) && op.Op == "dial": // not ErrConnectionClosed: the request may have been sent before
		return unsentError{fmt.Errorf("there is no connection to NATS at present: %v", err)}
	case errors.Is(err, nats.ErrMaxPayload):
		return fmt.Errorf("%w: %v: raise max_payload", driver.ErrInvalid, err)
	}
	if text := t.newViolation(t.lastViolation(), before, subject); text != "" {
		return fmt.Errorf("%w: %s: the user needs to publish to %s and some subjects below %s, and to subscribe to its "+
			"inbox: see docs/urls.md", driver.ErrDenied, text, t.writeSubject(">"), apiPrefix(t.js))
	}
	return fmt.Errorf("NATS: %w", err)
}

// lastViolation is the last violation of a permission on this connection; nil: there was none, or another error came
// after it. nats.go keeps it until it reconnects, even if it is of another part of the program.
func (t *table) lastViolation() error {
	if err := t.conn().LastError(); errors.Is(err, nats.ErrPermissionViolation) {
		return err
	}
	return nil
}

// quoted is the subject in the text of a violation.
var quoted = regexp.MustCompile(`"(\S+)"`)

// newViolation returns the text of a violation that was reported since the one before, if it is why a request that was
// published to subject had no answer: a server does not answer what it does not permit, but reports an error of the
// connection. Otherwise, the request may have been done.
func (t *table) newViolation(now, before error, subject string) string {
	if now == nil || now == before {
		return ""
	}
	of := quoted.FindStringSubmatch(now.Error())
	// Whether replies are permitted shows when the store is opened. Later violations of inboxes are of others.
	isInbox := func(s string) bool {
		return t.kv == nil && strings.HasPrefix(s, cmp.Or(t.conn().Opts.InboxPrefix, "_INBOX")+".")
	}
	if len(of) < 2 || of[1] != subject && !isInbox(of[1]) {
		return ""
	}
	return now.Error()
}

// maxMissing is for how long servers may not find a bucket that was there before, until that is believed. A server that
// has just become the leader of all may not know all buckets yet.
const maxMissing = 5 * time.Second

func (t *table) isMissingForLong() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.missing.RequestFailed(t.opts.Clock, maxMissing)
}

// explainRefusal translates a refusal of JetStream. An administrator can end the final ones, so their messages say how.
func (t *table) explainRefusal(e *jetstream.APIError) error {
	switch e.ErrorCode {
	case jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant:
		return fmt.Errorf("%w (%s)", record.ErrConflict, e.Description)
	case jetstream.JSErrCodeStreamNotFound:
		if t.kv != nil && !t.isMissingForLong() {
			return fmt.Errorf("NATS does not find the bucket %s, which was there before", t.bucket)
		}
		return missingBucketError{driverutil.RefuseStore(fmt.Errorf("there is no bucket %s: make it with create=true, or "+
			"correct its name", t.bucket))}
	case jetstream.JSErrCodeJetStreamNotEnabledForAccount:
		return fmt.Errorf("%w: JetStream is not enabled for this account: %s", driver.ErrUnsupported, e.Description)
	case jetstream.JSErrCodeStreamMessageExceedsMaximum:
		return fmt.Errorf("%w: %s: raise the bucket's largest value", driver.ErrInvalid, e.Description)
	case codeSealed:
		return driverutil.RefuseStore(fmt.Errorf("the bucket %s is sealed: use another one", t.bucket))
	case codeReplicasNeedPeers:
		return fmt.Errorf("%w: replicas above 1 need a cluster: %s", driver.ErrInvalid, e.Description)
	case codeAccountLimits:
		return driverutil.RefuseStore(fmt.Errorf("the account has reached a limit of JetStream; raise it: %s", e.Description))
	case codeNoResources, codeNoMemory, codeNoStorage:
		if e.ErrorCode == codeNoResources && t.knownSettings().inCluster {
			break // the leader steps down, and the next one may have room
		}
		return driverutil.RefuseStore(fmt.Errorf("JetStream has no room left; make some and try again: %s", e.Description))
	}
	if e.ErrorCode == codeStoreFailed && strings.Contains(e.Description, "maximum") {
		return driverutil.RefuseStore(fmt.Errorf("the bucket %s is full; raise its limits: %s", t.bucket, e.Description))
	}
	return fmt.Errorf("NATS says: %s (%d)", e.Description, e.ErrorCode)
}
