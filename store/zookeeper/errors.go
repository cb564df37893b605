package zookeeper

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/sequence"
)

// fault gives an error the form that the engines know. path is what was asked about.
func (t *tree) fault(err error, path string) error {
	switch {
	case err == nil || errors.Is(err, sequence.ErrSessionExpired):
		return err
	case t.life.Err() != nil:
		return driver.ErrClosed
	}
	switch err {
	case codeNoAuth:
		return fmt.Errorf("%w: the ZooKeeper user lacks a permission on %s or its parent; its ACL must allow read, create, write and delete", driver.ErrDenied, path)
	case codeInvalidACL:
		return fmt.Errorf("%w: the ZooKeeper servers do not take the ACL for %s; acl=creator needs a user, or a certificate that they know", driver.ErrDenied, path)
	case codeNoChildren:
		return fmt.Errorf("%w: %s, or the node above it, is ephemeral and takes no children: it is another client's lock or leadership of one node (see layout=plain)", driver.ErrDenied, path)
	case codeQuota:
		return fmt.Errorf("%w: a ZooKeeper quota above %s is used up", driver.ErrDenied, path)
	case codeUnimplemented:
		return fmt.Errorf("%w: the ZooKeeper server is too old; 3.5 is needed", driver.ErrUnsupported)
	}
	return err
}

// trouble remembers why a server could not be reached, to be told to those who wait for one.
func (t *tree) trouble(server string, err error) {
	if t.life.Err() != nil || errors.Is(err, context.Canceled) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lastTrouble = fmt.Errorf("zookeeper server %s: %v", server, err)
}

// unreached is the error of a request that was not sent, since there was no server to send it to.
func (t *tree) unreached(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lastTrouble == nil || t.life.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: no server takes the session: %v", ctx.Err(), t.lastTrouble)
}
