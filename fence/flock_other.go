//go:build !(darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd)

package fence

import (
	"errors"
	"os"
)

// tryLockFile reports that this system has no flock.
func tryLockFile(*os.File) (bool, error) { return false, errors.ErrUnsupported }
