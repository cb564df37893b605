package text

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// StderrMessage is Message for stderr. If stderr is not a terminal, the line begins with the time: somebody reads it
// later, in a log or in a mail.
func StderrMessage(format string, args ...any) string {
	line := Message(format, args...)
	if _, err := unix.IoctlGetWinsize(syscall.Stderr, unix.TIOCGWINSZ); err == nil {
		return line
	}
	return time.Now().Format(time.RFC3339) + " " + line
}
