package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
)

// deniedErrors are the replies after which another try cannot help, each with what the user can do.
var deniedErrors = []struct {
	err    error
	remedy string
}{
	{rpctypes.ErrPermissionDenied,
		"; the user's role must allow reading and writing the whole range of keys that starts with the prefix"},
	{rpctypes.ErrUserEmpty, "; the cluster asks for a user and a password, and the URL has none: write etcd://USER:PASSWORD@host"},
	{rpctypes.ErrInvalidAuthMgmt, ""}, {rpctypes.ErrAuthNotEnabled, ""},
}

// unusableErrors are further ones, after which the servers take no writes from anybody.
var unusableErrors = []struct {
	err    error
	remedy string
}{
	{rpctypes.ErrNoSpace, "; make room (compact and defragment, or raise --quota-backend-bytes), then run etcdctl alarm disarm"},
	{rpctypes.ErrCorrupt, "; its members' data differ, and it takes no writes: see etcdctl alarm list"},
}

// isRefusal reports whether an error says that the servers have not carried out a request. All others, such as a lost
// connection or a leader that changed meanwhile, leave it open, and so does what mayBeDone reports.
func isRefusal(err error) bool {
	switch codeOf(err) {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.NotFound:
		return true
	}
	return false
}

// mayBeDone reports whether an error reads like a refusal, and the request may have been carried out. A member that
// finds the quota used up when it carries out a request carries it out, and then says that there was no space. A reply
// may be too large to be received.
func mayBeDone(err error) bool { return codeOf(err) == codes.ResourceExhausted }

// codeOf is gRPC's code of an error, also of those for which etcd's client has types of its own.
func codeOf(err error) codes.Code {
	var known rpctypes.EtcdError
	if errors.As(rpctypes.Error(err), &known) {
		return known.Code()
	}
	return status.Code(err)
}

// errOpen is the error of a write that mayBeDone reports, and that may have been done indeed.
var errOpen = errors.New("etcd may have done what it was asked for")

// leaveOpen wraps an error in errOpen. The result is none of the errors after which nothing was done.
func leaveOpen(err error) error { return fmt.Errorf("%w, although it says: %v", errOpen, err) }

// explainError turns an error of etcd into one that the engines know.
func (t *nodeStore) explainError(err error) error {
	if err == nil {
		t.admission.CredentialsAccepted()
		return nil
	}
	if t.life.Err() != nil {
		return driver.ErrClosed
	}
	err = rpctypes.Error(err)
	if errors.Is(err, rpctypes.ErrAuthFailed) {
		return t.admission.CredentialsRefused(err)
	}
	if errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded {
		return t.explainDeadline(err)
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return sequence.ErrSessionExpired
	}
	for _, d := range deniedErrors {
		if errors.Is(err, d.err) {
			return fmt.Errorf("%w: %w%s", driver.ErrDenied, err, d.remedy)
		}
	}
	for _, u := range unusableErrors {
		if errors.Is(err, u.err) {
			return driverutil.RefuseStore(fmt.Errorf("%w%s", err, u.remedy))
		}
	}
	text := err.Error()
	if _, cause, ok := strings.Cut(text, "authentication handshake failed: "); ok { // wrong certificate, name or authority
		return t.admission.CertificateRefused(handshakeError(strings.TrimSuffix(cause, `"`)))
	}
	switch {
	case errors.Is(err, rpctypes.ErrLeaseTTLTooLarge), errors.Is(err, rpctypes.ErrRequestTooLarge):
		return fmt.Errorf("%w: %s", driver.ErrInvalid, text)
	}
	// gRPC has errors of its own for the end of a context. The engine looks for those of package context, to tell its
	// own limit for one request from the end of the caller's context.
	switch status.Code(err) {
	case codes.Canceled:
		return fmt.Errorf("%w: %s", context.Canceled, err)
	case codes.Unavailable:
		return &unavailableError{err}
	}
	return err
}

// explainDeadline says why there was no answer in time, if there is no connection. The client of etcd waits for one,
// and reports only the deadline.
func (t *nodeStore) explainDeadline(err error) error {
	switch t.cli.ActiveConnection().GetState() {
	case connectivity.TransientFailure, connectivity.Connecting:
	default:
		if errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		return fmt.Errorf("%w: %s", context.DeadlineExceeded, err)
	}
	hint := "uses no TLS (if it does, set tls=true)"
	if t.tls != nil {
		hint = "uses TLS"
	}
	return driverutil.AddProblems(fmt.Errorf("%w: no connection to etcd: check that a server listens at %s, and that it %s",
		context.DeadlineExceeded, strings.Join(t.cli.Endpoints(), ", "), hint), t.admission.Sources)
}

// handshakeError is the error of a TLS handshake that has failed for that cause, with a hint.
func handshakeError(cause string) error {
	hint := ""
	if strings.Contains(cause, "first record does not look like a TLS handshake") {
		hint = "; if the servers do not use TLS, leave the tls options out"
	}
	return &unavailableError{errors.New("no TLS connection to etcd: " + cause + hint)}
}

// unavailableError is a server that gave no answer, in fewer words than gRPC has.
type unavailableError struct{ err error }

func (u *unavailableError) Unwrap() error { return u.err }

// Error says that etcd cannot be reached, in fewer words than gRPC, with a hint if TLS is missing.
func (u *unavailableError) Error() string {
	text := u.err.Error()
	if _, dial, ok := strings.Cut(text, "Error while dialing: "); ok {
		return "etcd cannot be reached: " + strings.TrimSuffix(dial, `"`)
	}
	if strings.Contains(text, "error reading server preface") {
		return text + "; if the servers use TLS, set tls=true"
	}
	return text
}
