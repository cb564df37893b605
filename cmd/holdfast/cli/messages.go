package cli

import (
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
)

// messageFlags say how much run, once, hold and acquire tell on stderr: by default what somebody may have to act on.
type messageFlags struct{ quiet, verbose bool }

func (f *messageFlags) addMessageFlags(c *cobra.Command) {
	c.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "print only errors and losses: nothing if it waits or is skipped")
	c.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "also print when it waits, begins and ends")
}

func (f *messageFlags) checkMessageFlags() error {
	if f.quiet && f.verbose {
		return usageError("--quiet and --verbose exclude each other")
	}
	return nil
}

// printNotice prints what is neither an error nor a loss.
func (f messageFlags) printNotice(format string, args ...any) {
	if !f.quiet {
		printMessage(format, args...)
	}
}

// maxMessageTime is how long a message may keep this program from going on while it holds a lock: a pager may read no
// more of stderr.
const maxMessageTime = time.Second

// printDetail prints what only --verbose asks for.
func (f messageFlags) printDetail(format string, args ...any) {
	if f.verbose {
		printWhileHeld(format, args...)
	}
}

// printWhileHeld is printMessage for a program that holds a lock: it waits for maxMessageTime at most.
func printWhileHeld(format string, args ...any) {
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		printMessage(format, args...)
	}()
	guard.WaitWithTimeout(printed, maxMessageTime)
}

// tellsWaitOf reports whether a wait of known length is worth a line.
func (f messageFlags) tellsWaitOf(d time.Duration) bool {
	return !f.quiet && (f.verbose || isTerminal(os.Stderr) || d >= firstLogNotice)
}

// silenceSkip lets the program say nothing of a skip, with --quiet. The exit code and the record say it.
func (f messageFlags) silenceSkip(err error) error {
	var exit *exitError
	if f.quiet && errors.As(err, &exit) && exit.isSkip() {
		exit.silent = true
	}
	return err
}

// isSkip reports whether nothing was run because others do, or have done, the work; and not because something is
// wrong, or because nobody has run a slot in time.
func (e *exitError) isSkip() bool {
	switch e.outcomeOrDefault() {
	case outcomeNotAcquired, outcomeDone:
		return true
	}
	return false
}
