package file

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// TestDescribeError: the kernel's errors are wrapped in the driver's errors that apply.
func TestDescribeError(t *testing.T) {
	t.Parallel()
	for errno, denied := range map[syscall.Errno]bool{syscall.EACCES: true, syscall.EPERM: true, syscall.EROFS: true,
		syscall.ENOSPC: true, syscall.EDQUOT: true, syscall.EMFILE: false, syscall.EIO: false} {
		err := describeError("write x", errno)
		if !errors.Is(err, errno) || errors.Is(err, driver.ErrDenied) != denied ||
			!strings.Contains(err.Error(), "write x") {
			t.Errorf("%v: %v", errno, err)
		}
	}
	if describeError("write x", nil) != nil {
		t.Error("nothing was explained")
	}
}
