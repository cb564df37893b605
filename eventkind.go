package holdfast

import "log/slog"

// EventKind says what has happened. Its values are codes, fit for logs and JSON; they never change.
type EventKind string

const (
	// Of locks. Each EventAttempt is followed by one EventAcquired or one EventFailed, and each EventAcquired by one
	// EventLost or one EventReleased. Re-entering a lock makes no event.
	EventAttempt          EventKind = "lock_acquire_attempt" // a caller begins to acquire a lock
	EventAcquired         EventKind = "lock_acquired"        // a lease was granted
	EventFailed           EventKind = "lock_failed"          // the lock was not acquired
	EventRenewed          EventKind = "lock_renewed"         // the lease was renewed
	EventRenewalFailing   EventKind = "renewal_failing"      // a renewal failed or had no answer, and is tried again
	EventReleaseRequested EventKind = "release_requested"    // the holder was asked to release; the lease goes on
	EventLost             EventKind = "lock_lost"            // the lease ended before its holder released it
	EventReleased         EventKind = "lock_released"        // the holder released or detached the lease

	// Of the runs of a Ledger, which also have EventRenewalFailing and EventReleaseRequested. Each EventRunAttempt is
	// followed by one EventRunStarted or one EventRunRefused, and each EventRunStarted by one of the last four. A run
	// that was lost, and whose worker still reports in time, has an EventRunSucceeded or EventRunFailed as well.
	EventRunAttempt   EventKind = "run_attempt"   // a caller asks for a run
	EventRunStarted   EventKind = "run_started"   // the run was begun
	EventRunRefused   EventKind = "run_refused"   // the run was not begun: a run has succeeded, or is in progress, ...
	EventRunRenewed   EventKind = "run_renewed"   // the run was renewed
	EventRunLost      EventKind = "run_lost"      // the run ended before its worker reported
	EventRunSucceeded EventKind = "run_succeeded" // the worker reported success
	EventRunFailed    EventKind = "run_failed"    // the worker reported a failure, or its client was closed before it reported
	EventRunAbandoned EventKind = "run_abandoned" // the ledger has refused the report, or could not be told of the Close
)

// EventPhase is what events of several kinds mean for an attempt to acquire a lock or to begin a run, and for the lease
// that it leads to. What counts, logs or traces events goes by it, and so needs no change for a new kind.
type EventPhase string

const (
	PhaseAttempt EventPhase = "attempt" // a caller begins to acquire a lock, or asks for a run
	PhaseGrant   EventPhase = "grant"   // the attempt has led to a lease or a run
	PhaseFailure EventPhase = "failure" // the attempt has led to nothing; Event.Reason is a FailureReason
	PhaseRenewal EventPhase = "renewal" // the store was asked to renew; Event.Err says that it did not
	PhaseNotice  EventPhase = "notice"  // something happened to a lease or a run, which goes on
	PhaseLoss    EventPhase = "loss"    // it ended before its holder or worker ended it; Event.Reason is a LossCause
	PhaseEnd     EventPhase = "end"     // its holder or worker has ended it; of a run, after a loss as well
)

// eventRow is what all events of a kind have in common.
type eventRow struct {
	kind   EventKind
	phase  EventPhase
	level  slog.Level // of the line in a log; more if something is wrong that the kind does not say
	urgent bool       // rare, and somebody may want to act on it: it waits for no other events
	ofRuns bool       // of runs only
	// onRun is the kind that takes its place in the events of runs; empty if it is itself, or if runs have none.
	onRun       EventKind
	description string
}

// eventRows has a row for each kind.
var eventRows = []eventRow{
	{kind: EventAttempt, phase: PhaseAttempt, level: slog.LevelDebug, onRun: EventRunAttempt,
		description: "a caller begins to acquire the lock"},
	{kind: EventAcquired, phase: PhaseGrant, level: slog.LevelDebug, onRun: EventRunStarted,
		description: "the lock was acquired"},
	{kind: EventFailed, phase: PhaseFailure, level: slog.LevelDebug, onRun: EventRunRefused,
		description: "the lock was not acquired"},
	{kind: EventRenewed, phase: PhaseRenewal, level: slog.LevelDebug, onRun: EventRunRenewed,
		description: "the lease was renewed"},
	{kind: EventRenewalFailing, phase: PhaseRenewal, level: slog.LevelWarn, urgent: true,
		description: "a renewal failed and is tried again"},
	{kind: EventReleaseRequested, phase: PhaseNotice, level: slog.LevelInfo, urgent: true,
		description: "the holder was asked to release the lock"},
	{kind: EventLost, phase: PhaseLoss, level: slog.LevelError, urgent: true, onRun: EventRunLost,
		description: "the lock was lost"},
	{kind: EventReleased, phase: PhaseEnd, level: slog.LevelDebug, description: "the lock was released"},

	{kind: EventRunAttempt, phase: PhaseAttempt, level: slog.LevelDebug, ofRuns: true, description: "a caller begins a run"},
	{kind: EventRunStarted, phase: PhaseGrant, level: slog.LevelDebug, ofRuns: true, description: "the run was started"},
	{kind: EventRunRefused, phase: PhaseFailure, level: slog.LevelDebug, ofRuns: true,
		description: "the run was not started"},
	{kind: EventRunRenewed, phase: PhaseRenewal, level: slog.LevelDebug, ofRuns: true, description: "the run was renewed"},
	{kind: EventRunLost, phase: PhaseLoss, level: slog.LevelError, urgent: true, ofRuns: true,
		description: "the run was lost"},
	{kind: EventRunSucceeded, phase: PhaseEnd, level: slog.LevelDebug, ofRuns: true, description: "the run has succeeded"},
	{kind: EventRunFailed, phase: PhaseEnd, level: slog.LevelWarn, ofRuns: true, description: "the run has failed"},
	{kind: EventRunAbandoned, phase: PhaseEnd, level: slog.LevelWarn, ofRuns: true, description: "the run was abandoned"},
}

// rowsByKind finds a row.
var rowsByKind = func() map[EventKind]*eventRow {
	rows := map[EventKind]*eventRow{}
	for i := range eventRows {
		rows[eventRows[i].kind] = &eventRows[i]
	}
	return rows
}()

// row is the row of a kind. That of an unknown one is empty.
func (k EventKind) row() *eventRow {
	if row := rowsByKind[k]; row != nil {
		return row
	}
	return &eventRow{kind: k, description: string(k)}
}

// EventKinds returns all kinds: those of locks, and then those of runs only.
func EventKinds() []EventKind {
	kinds := make([]EventKind, len(eventRows))
	for i, row := range eventRows {
		kinds[i] = row.kind
	}
	return kinds
}

// Description says what the code means, in a few words for people. The words may change. An unknown code describes
// itself.
func (k EventKind) Description() string { return k.row().description }

// Phase is what the kind means for an attempt and its lease. It is empty for an unknown kind.
func (k EventKind) Phase() EventPhase { return k.row().phase }

// OfRuns reports whether only runs have events of the kind. A run also has events of kinds that locks have.
func (k EventKind) OfRuns() bool { return k.row().ofRuns }

// Level is the level at which Options.Logger gets the event. It is a warning or more if something is wrong: also if an
// event that is usual has an error that is not.
func (e Event) Level() slog.Level {
	row, isWrong := e.Kind.row(), e.Err != nil
	if row.phase == PhaseFailure {
		isWrong = !FailureReason(e.Reason).isUsual()
	}
	if isWrong {
		return max(row.level, slog.LevelWarn)
	}
	return row.level
}
