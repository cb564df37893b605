package torture

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// runShell runs a command line by sh. It returns what it has printed, shortened, for an error.
func runShell(ctx context.Context, line string, limit time.Duration) (string, error) {
	var out limitedBuffer
	c := exec.Command("sh", "-c", line)
	c.Stdout, c.Stderr = &out, &out
	c.WaitDelay = time.Second // a grandchild may keep the output open
	leadGroup(c)
	if err := servertest.StartProcess(c); err != nil {
		return "", err
	}
	done := make(chan error, 1)
	go func() {
		err := c.Wait()
		if errors.Is(err, exec.ErrWaitDelay) { // it has succeeded, and left a process: a server that it has started
			err = nil
		}
		done <- err
	}()
	var err error
	select {
	case err = <-done:
	case <-time.After(limit):
		killGroup(c.Process)
		<-done
		err = fmt.Errorf("it has not ended within %v", limit)
	case <-ctx.Done():
		killGroup(c.Process)
		<-done
		err = ctx.Err()
	}
	if text := strings.TrimSpace(out.String()); err != nil && text != "" {
		return ": " + text, err
	}
	return "", err
}
