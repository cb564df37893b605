//go:build !linux && !darwin

package file

import (
	"context"
	"fmt"
	"runtime"

	"github.com/holdfast-go/holdfast/driver"
)

func openDirectory(context.Context, string, Options, bool) (*table, error) {
	return nil, fmt.Errorf("%w: the file store works on Linux and macOS, not on %s", driver.ErrUnsupported, runtime.GOOS)
}

func ancestorWarnings(string) []string { return nil }
