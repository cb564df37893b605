package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
	"github.com/holdfast-go/holdfast/driver"
)

// maxEarly is how early this program may be started before a slot, and waits for it: the clock of the machine that
// starts it may be ahead of the store's. In short slots it is a tenth of the slot.
const maxEarly = time.Minute

// chooseSlot returns the slot whose turn it is, by the store's clock. It waits for the next slot if that starts soon.
// If the slot started too long ago and was not run, it is missed.
func (j *onceJob) chooseSlot(ctx context.Context, ledger *holdfast.Ledger, events *eventFile) (holdfast.Slot, error) {
	for {
		slot, err := j.readSlot(ctx, ledger)
		if err != nil {
			return slot, err
		}
		events.addFields(fields{"key": slot.Key(j.key), "slot": formatSlot(slot.Start)})
		early, isEarly := timeToNextSlot(slot)
		if !isEarly {
			return slot, j.checkMissed(ctx, ledger, slot)
		}
		events.addEvent(eventSlotEarly, fields{"next_slot": formatSlot(slot.End), "remaining_ms": shown.Millis(early)})
		if j.messages.tellsWaitOf(early) {
			printMessage("waiting %v for the next slot of %s, %s", early.Round(time.Millisecond), quoteName(j.key),
				formatSlot(slot.End))
		}
		if err := sleepContext(ctx, early); err != nil {
			return slot, storeError(err)
		}
	}
}

// readSlot asks for the current slot, and gives up after as long as run does.
func (j *onceJob) readSlot(ctx context.Context, ledger *holdfast.Ledger) (holdfast.Slot, error) {
	ctx, cancel := j.limitCall(ctx)
	defer cancel()
	slot, err := ledger.CurrentSlot(ctx, j.schedule)
	switch {
	case err != nil && ctx.Err() != nil:
		return slot, storeError(context.Cause(ctx))
	case errors.Is(err, holdfast.ErrUnsupported):
		return slot, exitWith(exitUsage, "this store does not tell the time, so it has no slots: %s", errorText(err))
	case err != nil:
		return slot, ledgerError(err)
	}
	if start, length := findLongSlot(j.schedule, slot.Start, j.opts.KeepFor); length > 0 {
		return slot, usageError("--keep-for %v is shorter than the slot of %s, which takes %v; KEY would be run twice in it",
			j.opts.KeepFor, formatSlot(start), length)
	}
	return slot, nil
}

// maxSlotSteps bounds how far findLongSlot looks ahead, so that it takes no more than milliseconds.
const maxSlotSteps = 5000

// findLongSlot returns a slot that takes longer than the key is remembered, in which it would be run twice: the first
// one of a year that begins with the slot of start. So a schedule that has such a slot now and then is refused when
// it is first used. The length is 0 if there is none.
func findLongSlot(schedule holdfast.Schedule, start time.Time, keepFor time.Duration) (time.Time, time.Duration) {
	if keepFor == 0 {
		return start, 0
	}
	for last, steps := start.AddDate(1, 0, 0), 0; start.Before(last) && steps < maxSlotSteps; steps++ {
		// If no more than keepFor lies between two starts of slots, the slots between them need not be looked at.
		next := schedule.Next(start.Add(keepFor / 2))
		if length := next.Sub(start); next.IsZero() || length > keepFor {
			next = schedule.Next(start)
			if length = next.Sub(start); next.IsZero() || length <= 0 {
				break // the last slot has no end
			} else if length > keepFor {
				return start, length
			}
		}
		start = next
	}
	return start, 0
}

// limitCall bounds a call to the store.
func (j *onceJob) limitCall(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, driver.UnreachableTimeout(j.opts.TTL), errNoAnswer)
}

// timeToNextSlot is how long it takes until the next slot starts, if that is so short that this program was probably
// started for that slot.
func timeToNextSlot(slot holdfast.Slot) (left time.Duration, early bool) {
	if slot.End.IsZero() {
		return 0, false
	}
	left = slot.End.Sub(slot.Now)
	return left, left <= min(maxEarly, slot.End.Sub(slot.Start)/10)
}

// checkMissed returns an error if the first run of a slot would begin too late. Later runs may begin until the end of
// the slot.
func (j *onceJob) checkMissed(ctx context.Context, ledger *holdfast.Ledger, slot holdfast.Slot) error {
	limit := j.startLimit(slot)
	late := slot.Now.Sub(slot.Start)
	if j.startWithin == 0 || late <= limit {
		return nil
	}
	ctx, cancel := j.limitCall(ctx)
	defer cancel()
	runs, err := ledger.LastRuns(ctx, slot.Key(j.key), 1)
	switch {
	case err != nil && ctx.Err() != nil:
		return storeError(context.Cause(ctx))
	case err != nil:
		return ledgerError(err)
	case len(runs) > 0:
		return nil
	}
	capped := ""
	if limit < j.startWithin {
		capped = " (half of the slot, which is the most)"
	}
	return &exitError{outcome: outcomeMissed, err: fmt.Errorf(
		"%s is not run: its slot started %s ago and was not run within %s%s; see --start-within and --catch-up",
		quoteName(slot.Key(j.key)), formatDuration(late), limit, capped)}
}

// startLimit is how late a slot may be run for the first time, if startWithin says so.
func (j *onceJob) startLimit(slot holdfast.Slot) time.Duration {
	if slot.End.IsZero() {
		return j.startWithin
	}
	return min(j.startWithin, slot.End.Sub(slot.Start)/2)
}

// lastStart is until when a slot waits for the slot before: until it ends, or until the time after which it may not be
// run for the first time. If that has passed, this is not the first time.
func (j *onceJob) lastStart(slot holdfast.Slot) time.Time {
	if last := slot.Start.Add(j.startLimit(slot)); j.startWithin > 0 && last.After(slot.Now) {
		return last
	}
	return slot.End
}

// checkOverlap refuses slots that this store cannot keep apart.
func (j *onceJob) checkOverlap(client *holdfast.Client) error {
	if j.allowOverlap || len(client.Info().Kinds) > 0 {
		return nil
	}
	return usageError("the layout in the store's URL has no locks, so slots of %s could overlap: give --allow-overlap if "+
		"they may, or use a store without that layout", quoteName(j.key))
}

// eventHandler reports on stderr and in the record what happens to the run, and that it waits for another slot.
func (j *onceJob) eventHandler(events *eventFile) func(holdfast.Event) {
	next := newEventHandler(j.key, events, j.messages)
	return func(e holdfast.Event) {
		next(e)
		if e.Kind != holdfast.EventFailed || e.Reason != string(holdfast.FailureInProgress) {
			return
		}
		events.addEvent(eventSlotWaiting, nil)
		var held *holdfast.HeldError
		if errors.As(&holdfast.Error{Err: e.Err}, &held) && len(held.Holders) > 0 {
			other := describeSlotHolder(held.Holders[0])
			if j.otherSlot.Swap(&other) == nil {
				close(j.waitsForSlot)
			}
			j.messages.printNotice("waiting for the end of another slot of %s: %s", quoteName(j.key), other)
		}
	}
}

// describeSlotHolder says which slot of a job is run, and by whom.
func describeSlotHolder(h holdfast.ClaimInfo) string {
	text := fmt.Sprintf("%s is run by %s", quoteName(h.Meta), printableText(h.Owner))
	if !h.Since.IsZero() {
		text += " since " + formatTime(h.Since)
	}
	return text
}

// slotMissed is the end of a slot that another slot of its job has outlasted.
func (j *onceJob) slotMissed(key string, err error) *exitError {
	text := "another slot was run"
	if held := (*holdfast.HeldError)(nil); errors.As(err, &held) && len(held.Holders) > 0 {
		text = describeSlotHolder(held.Holders[0])
	}
	return &exitError{code: exitMissed, outcome: outcomeMissed, err: &refusedError{fmt.Sprintf(
		"%s is missed, because another slot took too long: %s; see --start-within and --allow-overlap", quoteName(key), text),
		holdfast.FailureMissed, err}}
}

// formatSlot is the start of a slot as it is in the key.
func formatSlot(start time.Time) string { return start.UTC().Format(time.RFC3339Nano) }
