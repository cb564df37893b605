//go:build !linux && !darwin && !windows

package file

import (
	"fmt"
	"runtime"
	"syscall"

	"github.com/holdfast-go/holdfast/driver"
)

const errNotDirectory = syscall.ENOTDIR

func newEnvironment(string, Options, bool) (environment, error) {
	return environment{}, fmt.Errorf("%w: the file store works on Linux, macOS and Windows, not on %s",
		driver.ErrUnsupported, runtime.GOOS)
}

func examineAncestors(string) []driver.Finding { return nil }

func statFileSystem(string) (fileSystemState, error) { return fileSystemState{}, driver.ErrUnsupported }
