package main

import (
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// The messages between the wrapper and the guard: JSON values, one per line. Both are the same binary (see
// ownProgram), so they may change in any release.

// controlMessage is what the wrapper sends to the guard. Exactly one of Start, Until, Lost, Signal and Kill is set.
type controlMessage struct {
	Start         *startMessage  `json:"begin,omitempty"` // the first message, and only that
	Until         time.Duration  `json:"until,omitempty"` // the lease's new expiry, as boottimeNow counts
	Lost          *lossMessage   `json:"lost,omitempty"`
	Signal        syscall.Signal `json:"signal,omitempty"` // to be forwarded to the command
	GroupSignaled bool           `json:"group,omitempty"`  // with Signal: the process group has received it already
	Kill          bool           `json:"kill,omitempty"`   // the user wants the whole tree killed
}

// startMessage makes the guard start the command.
type startMessage struct {
	Lock   string        `json:"lock"`
	Until  time.Duration `json:"until"` // the lease's expiry, as boottimeNow counts
	Policy killPolicy    `json:"terms"`
}

// killPolicy is how a tree of processes is ended.
type killPolicy struct {
	Signal syscall.Signal `json:"signal"` // the signal that requests the end
	Grace  time.Duration  `json:"grace"`  // between that signal and SIGKILL
	// CheckInterval is the longest time between two readings of the clock: timers do not run while the machine sleeps.
	CheckInterval time.Duration `json:"pulse"`
	MaxHoldEnd    time.Duration `json:"hold_end,omitempty"` // when --max-hold ends, as boottimeNow counts; 0 without it
}

// lossMessage is a holdfast.LossError as it is sent.
type lossMessage struct {
	Cause holdfast.LossCause `json:"loss"`
	Why   string             `json:"why,omitempty"`
}

// guardReport is what the guard sends to the wrapper. Which fields are set depends on Event.
type guardReport struct {
	Event  string             `json:"event"`
	PID    int                `json:"pid,omitempty"`
	Errno  syscall.Errno      `json:"errno,omitempty"`
	Status syscall.WaitStatus `json:"status,omitempty"`
	Why    string             `json:"why,omitempty"`
	Left   []process          `json:"left,omitempty"`
	Signal syscall.Signal     `json:"signal,omitempty"`
}

// The events of a guardReport, with the fields that they set.
const (
	reportStarted      = "started" // PID, of the command
	reportFailed       = "failed"  // Errno, Why: the command could not be started; the last report
	reportExited       = "exited"  // Status, of the command
	reportSignal       = "signal"  // Signal: the guard itself received it
	reportLeft         = "left"    // Left: processes that outlive the command
	reportTerminating  = "told"    // Why: the tree was asked to end
	reportKilled       = "killed"  // SIGKILL was sent for the first time
	reportUnkillable   = "stuck"   // Left: processes that SIGKILL did not end
	reportPartlyHidden = "unseen"  // Why: only children can be found
	reportFinished     = "gone"    // nothing is left; Why, if the tree was ended; the last report
)

// boottimeNow reads the clock that all processes of the machine share.
func boottimeNow() time.Duration { return driver.SystemClock.Boottime() }
