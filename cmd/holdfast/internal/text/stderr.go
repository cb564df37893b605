package text

import (
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/system"
)

// StderrMessage is Message for stderr. If stderr is not a terminal, the line begins with the time: somebody reads it
// later, in a log or in a mail.
func StderrMessage(format string, args ...any) string {
	line := Message(format, args...)
	if _, ok := system.TerminalWidth(uintptr(syscall.Stderr)); ok {
		return line
	}
	return time.Now().Format(time.RFC3339) + " " + line
}
