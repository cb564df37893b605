package cli

import (
	"os"
	"time"
)

// writeWithin writes a line to a pipe. If it has not been written when the timeout has passed, it may be later: a write
// to a pipe cannot be ended here, so it is left to a goroutine, which ends with the pipe.
func writeWithin(pipe *os.File, line []byte, timeout time.Duration) error {
	done := make(chan error, 1)
	go func() {
		_, err := pipe.Write(line)
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(timeout):
		return os.ErrDeadlineExceeded
	}
}

// expectBlocking does nothing: pipes always block here.
func expectBlocking(*os.File) {}

// readAvailable reads nothing: the reads of a pipe have no deadline here, so that nothing is left by one.
func readAvailable(*os.File, []byte) int { return 0 }

// isOpenForBoth is not known here.
func isOpenForBoth(*os.File) bool { return false }
