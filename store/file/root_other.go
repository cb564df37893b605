//go:build !linux && !darwin

package file

import (
	"fmt"
	"runtime"

	"github.com/holdfast-go/holdfast/driver"
)

func newEnvironment(string, Options, bool) (environment, error) {
	return environment{}, fmt.Errorf("%w: the file store works on Linux and macOS, not on %s", driver.ErrUnsupported,
		runtime.GOOS)
}

func examineAncestors(string) []driver.Finding { return nil }

func statFileSystem(string) (fileSystemState, error) { return fileSystemState{}, driver.ErrUnsupported }

func (*table) notifyClients(string, []string) {}

type noticePipe struct{}

func (*table) removeDeadPipes() {}

func (*table) closePipes() {}
