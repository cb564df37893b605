package zookeeper

import (
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/store/zookeeper/internal/zk"
)

// explainError gives an error the form that the engines know. path is what was asked about.
func (t *nodeStore) explainError(err error, path string) error {
	switch {
	case err == nil || errors.Is(err, sequence.ErrSessionExpired):
		return err
	case errors.Is(err, zk.ErrSessionExpired):
		return sequence.ErrSessionExpired
	case t.life.Err() != nil:
		return driver.ErrClosed
	}
	switch err {
	case zk.CodeNoAuth:
		return driverutil.LackPermission("to read, create, write or delete", path+" or its parent, as their ACL says")
	case zk.CodeInvalidACL:
		return fmt.Errorf("%w: the ZooKeeper servers reject the ACL for %s; "+
			"acl=creator needs a user, or a certificate that they know", driver.ErrDenied, path)
	case zk.CodeNoChildren:
		return driverutil.RefuseStore(fmt.Errorf("%s, or the node above it, is ephemeral and takes no children: "+
			"it is another client's lock or leadership of one node (see layout=plain)", path))
	case zk.CodeQuota:
		return driverutil.RefuseStore(fmt.Errorf("a ZooKeeper quota above %s is used up", path))
	case zk.CodeUnimplemented:
		return fmt.Errorf("%w: the ZooKeeper server is too old; 3.5 is needed", driver.ErrUnsupported)
	}
	return err
}
