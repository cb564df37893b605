package guard

import (
	"errors"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/driver/clock"
)

// The messages between the wrapper and the guard: JSON values, one per line. Both are the same binary (see
// OwnProgram), so they may change in any release.

// ControlMessage is what the wrapper sends to the guard. Exactly one of Start, Until, Lost, Signal, Kill, End and
// Beside is set.
type ControlMessage struct {
	Start         *StartMessage  `json:"begin,omitempty"` // the first message, and only that
	Until         time.Duration  `json:"until,omitempty"` // the lease's new expiry, as BoottimeNow counts
	EndsBy        string         `json:"ends,omitempty"`  // with Until: why it ends then, the code of a Loss
	Lost          *Loss          `json:"lost,omitempty"`
	Signal        syscall.Signal `json:"signal,omitempty"` // to be forwarded to the command
	GroupSignaled bool           `json:"group,omitempty"`  // with Signal: the process group has received it already
	Kill          bool           `json:"kill,omitempty"`   // the user wants the whole tree killed
	End           bool           `json:"end,omitempty"`    // the tree is to be ended, while the lease is valid
	Beside        []string       `json:"beside,omitempty"` // the path and the argv of a program to start in the tree
}

// StartMessage makes the guard start the command.
type StartMessage struct {
	Lock   string        `json:"lock"`
	Until  time.Duration `json:"until"` // the lease's expiry, as BoottimeNow counts
	EndsBy string        `json:"ends"`  // why it ends then, the code of a Loss
	Policy KillPolicy    `json:"terms"`
}

// KillPolicy is how a tree of processes is ended.
type KillPolicy struct {
	Signal syscall.Signal `json:"signal"` // the signal that requests the end
	Grace  time.Duration  `json:"grace"`  // between that signal and SIGKILL
	// CheckInterval is the longest time between two readings of the clock: timers do not run while the machine sleeps.
	CheckInterval time.Duration `json:"pulse"`
	// LossNote ends the messages about the loss of the lock: it says which store the lock is in.
	LossNote string `json:"loss_note,omitempty"`
}

// Loss says that a lease has ended, and why. It is the error with which a leaseMirror ends.
type Loss struct {
	Code string `json:"code,omitempty"` // why, as programs read it: one of the codes below, or a holdfast.LossCause
	Why  string `json:"why"`            // as users read it
	// StaysHeld says that the claim keeps others out until its TTL has passed, so that the tree has time to clean up.
	StaysHeld bool `json:"held,omitempty"`
}

func (l *Loss) Error() string { return l.Why }

// The codes of a Loss that the guard finds itself. Those of a holdfast.LossCause have the same text.
const (
	CodeExpired     = "expired"      // a LossCause
	CodeMaxHold     = "max-hold"     // a LossCause
	CodeNoProgress  = "no-progress"  // a LossCause
	CodeWrapperGone = "wrapper-gone" // the wrapper has ended
	CodeGuardGone   = "guard-gone"   // the guard has ended

	// CodeReleaseRequested is the code of what ends a tree without a loss: ControlMessage.End.
	CodeReleaseRequested = "release-requested"
)

// newReport makes a report about the end of a tree; why may be nil.
func newReport(event string, why error) Report {
	r := Report{Event: event}
	if why == nil {
		return r
	}
	r.Why = why.Error()
	if loss := (*Loss)(nil); errors.As(why, &loss) {
		r.Code = loss.Code
	}
	return r
}

// Report is what the guard sends to the wrapper. Which fields are set depends on Event.
type Report struct {
	Event  string             `json:"event"`
	PID    int                `json:"pid,omitempty"`
	Errno  syscall.Errno      `json:"errno,omitempty"`
	Status syscall.WaitStatus `json:"status,omitempty"`
	Code   string             `json:"code,omitempty"`
	Why    string             `json:"why,omitempty"`
	Left   []Process          `json:"left,omitempty"`
	Signal syscall.Signal     `json:"signal,omitempty"`
}

// The events of a Report, with the fields that they set.
const (
	ReportStarted      = "started" // PID, of the command
	ReportFailed       = "failed"  // Errno, Why: the command could not be started; the last report
	ReportExited       = "exited"  // Status, of the command
	ReportSignal       = "signal"  // Signal: the guard itself received it
	ReportLeft         = "left"    // Left: processes that outlive the command
	ReportTerminating  = "told"    // Code, Why: the tree was asked to end
	ReportKilled       = "killed"  // SIGKILL was sent for the first time
	ReportUnkillable   = "stuck"   // Left: processes that SIGKILL did not end
	ReportBeside       = "beside"  // PID, or Why it could not be started: of a program next to the command
	ReportPartlyHidden = "unseen"  // Why: only children can be found
	// nothing is left; Status, of the command, as in ReportExited, which may have been dropped; Code, Why, if the tree
	// was ended; the last report
	ReportFinished = "gone"
)

// BoottimeNow reads the clock that all processes of the machine share.
func BoottimeNow() time.Duration { return clock.System.Boottime() }
