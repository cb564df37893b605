package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// deniedErrors are the replies after which another try cannot help, each with what the user can do.
var deniedErrors = []struct {
	err    error
	remedy string
}{
	{rpctypes.ErrPermissionDenied,
		"; the user's role must allow to read and write the whole range of keys that starts with the prefix"},
	{rpctypes.ErrUserEmpty, "; the cluster asks for a user and a password"},
	{rpctypes.ErrNoSpace, "; make room (compact and defragment, or raise --quota-backend-bytes), then run etcdctl alarm disarm"},
	{rpctypes.ErrCorrupt, "; its members' data differ, and it takes no writes: see etcdctl alarm list"},
	{rpctypes.ErrAuthFailed, ""}, {rpctypes.ErrInvalidAuthMgmt, ""}, {rpctypes.ErrAuthNotEnabled, ""},
}

// isRefusal reports whether an error says that the servers have not carried out a request. All others, such as a lost
// connection or a leader that changed meanwhile, leave it open.
func isRefusal(err error) bool {
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.ResourceExhausted, codes.NotFound:
		return true
	}
	return false
}

// convertError turns an error of etcd into one that the engines know.
func (t *nodeStore) convertError(err error) error {
	if err == nil {
		return nil
	}
	if t.life.Err() != nil {
		return driver.ErrClosed
	}
	err = rpctypes.Error(err)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return sequence.ErrSessionExpired
	}
	for _, d := range deniedErrors {
		if errors.Is(err, d.err) {
			return fmt.Errorf("%w: %w%s", driver.ErrDenied, err, d.remedy)
		}
	}
	switch text := err.Error(); {
	case strings.Contains(text, "authentication handshake failed"): // TLS: wrong certificate, name or authority
		return fmt.Errorf("%w: %s", driver.ErrDenied, text)
	case errors.Is(err, rpctypes.ErrLeaseTTLTooLarge), errors.Is(err, rpctypes.ErrRequestTooLarge):
		return fmt.Errorf("%w: %s", driver.ErrInvalid, text)
	}
	// gRPC has errors of its own for the end of a context. The engine looks for those of package context, to tell its own
	// limit for one request from the end of the caller's context.
	switch status.Code(err) {
	case codes.Canceled:
		return fmt.Errorf("%w: %s", context.Canceled, err)
	case codes.DeadlineExceeded:
		return fmt.Errorf("%w: %s", context.DeadlineExceeded, err)
	}
	return err
}
