package etcd

import (
	"errors"
	"os/exec"

	"github.com/holdfast-go/holdfast/driver"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Short names for what the tests say often.
type standing = driver.Standing

const (
	kindSemaphore = driver.KindSemaphore
	breakMark     = driver.BreakMark
	breakForce    = driver.BreakForce
)

var (
	commandContext = exec.CommandContext
	withLease      = clientv3.WithLease
)

func isHeld(err error) bool        { return errors.Is(err, driver.ErrHeld) }
func isUnsupported(err error) bool { return errors.Is(err, driver.ErrUnsupported) }
