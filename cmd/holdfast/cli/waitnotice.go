package cli

import (
	"context"
	"os"
	"time"
)

const (
	firstUserNotice    = 300 * time.Millisecond // how long a user who watches waits before a message tells the reason
	userNoticeInterval = 2 * time.Second        // between two checks whether that message is still right
	firstLogNotice     = time.Second            // how long a wait takes that is worth a line in a log
)

// nextLogNotice is when a log gets the next line about a wait, counted from its start: after 1 second, 1 minute, 2,
// 4, 8, 16 and 32 minutes, 1 hour, and then each hour. A reader sees that the program is alive, and a long wait fills
// no disk.
func nextLogNotice(waited time.Duration) time.Duration {
	if waited < firstLogNotice {
		return firstLogNotice
	}
	for at := time.Minute; at < time.Hour; at *= 2 {
		if at > waited {
			return at
		}
	}
	return waited.Truncate(time.Hour) + time.Hour
}

// waitView is what is known of the holder that a wait is for. The zero value says that there is none.
type waitView struct {
	held  string // the end of the message
	state string // differs if a user should be told again
}

// waitNotices tells what a wait is for.
type waitNotices struct {
	subject string                                  // the beginning of each message
	look    func(context.Context) (waitView, error) // looks for the holder
	print   func(format string, args ...any)
	toUser  bool // a user watches: tell soon, and again when the holder changes
	toLog   bool // nobody may watch: tell by nextLogNotice that the wait goes on
}

// noteWaiting tells on stderr what the program waits for, until ctx ends. It closes the channel when it prints nothing
// more.
func (f messageFlags) noteWaiting(
	ctx context.Context, subject string, look func(context.Context) (waitView, error),
) <-chan struct{} {
	done := make(chan struct{})
	if f.quiet {
		close(done)
		return done
	}
	terminal := isTerminal(os.Stderr)
	w := &waitNotices{subject: subject, look: look, print: printStoreMessage, toUser: terminal || f.verbose, toLog: !terminal}
	go func() {
		defer close(done)
		w.run(ctx)
	}()
	return done
}

// run returns when ctx has ended.
func (w *waitNotices) run(ctx context.Context) {
	began, told, said := time.Now(), "", false
	logDue, pause := nextLogNotice(0), firstUserNotice
	if w.toUser { // who is told before that
		logDue = nextLogNotice(firstLogNotice)
	}
	for {
		if left := logDue - time.Since(began); w.toLog && (!w.toUser || left < pause) {
			pause = max(left, 0)
		}
		if sleepContext(ctx, pause) != nil {
			return
		}
		pause = userNoticeInterval
		view, err := w.lookBriefly(ctx)
		if ctx.Err() != nil {
			return
		}
		waited := time.Since(began)
		isDue := w.toLog && waited >= logDue
		if isDue {
			logDue = nextLogNotice(waited)
		}
		switch isNew := w.toUser && view.state != "" && view.state != told; {
		case isNew && !isDue, isDue && !said:
			w.print("%s%s", w.subject, view.text(err))
		case isDue:
			w.print("still %s after %v%s", w.subject, waited.Round(time.Second), view.text(err))
		default:
			continue
		}
		told, said = view.state, true
	}
}

// lookBriefly looks for the holder, and gives up soon if the store does not answer.
func (w *waitNotices) lookBriefly(ctx context.Context) (waitView, error) {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	return w.look(ctx)
}

// text is the end of a message. The holder may be unknown, or there may be none at the moment.
func (v waitView) text(err error) string {
	if err != nil {
		return "; the store does not say who holds it: " + errorText(err)
	}
	return v.held
}
