package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
)

func newHold(storeURL *string) *cobra.Command {
	f := lockFlags{store: storeURL}
	var messages messageFlags
	var storeWait storeWaitFlag
	var events, metricsFile string
	var asJSON bool
	var onRequest requestAction
	c := &cobra.Command{
		Use:   "hold [flags] NAME",
		Short: "Hold a lock until a signal ends it",
		Long:  holdHelp,
		Args:  exactArgs("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return withEventFile(events, fields{"lock": args[0]}, func(r *eventFile) error {
				return withTelemetry(metricsFile, "hold", args[0], func(t *telemetry) error {
					request, err := f.newRequest(c, args[0], "hold")
					if err != nil {
						return err
					}
					if err := messages.checkMessageFlags(); err != nil {
						return err
					}
					if onRequest.script != "" {
						return usageError("--on-request of hold is ignore or release; a script needs a command: see run")
					}
					request.telemetry = t
					request.messages, request.storeWait = messages, storeWait.storeWaitLimit(c, f.wait)
					return messages.silenceSkip(holdLock(request, *f.store, asJSON, onRequest, r))
				})
			})
		},
		DisableFlagsInUseLine: true,
	}
	f.addFlags(c)
	f.addHoldFlags(c)
	messages.addMessageFlags(c)
	storeWait.addStoreWaitFlag(c)
	c.Flags().Var(&onRequest, "on-request", "if asked for the lock: ignore, or `release`, and exit 79")
	addEventsFlag(c, &events)
	addJSONFlag(c, &asJSON)
	addMetricsFlag(c, &metricsFile)
	groupFlags(c, lockFlagGroups, holdAfterFlags)
	return c
}

// holdLock holds the lock until a signal, a loss or a request ends it. It prints the token only once the lock is
// held, so that a script can wait for that line.
func holdLock(request *lockRequest, store string, asJSON bool, onRequest requestAction, r *eventFile) error {
	signals := catchSignals()
	client, lease, err := request.acquireUntilSignal(store, signals, r)
	if client != nil {
		defer closeClient(client)
	}
	if err != nil {
		return err
	}
	if err := printHold(client.Info().Store, lease, asJSON); err != nil {
		_ = request.releaseLease(func() error { return request.releaseUnused(client, lease) }, false, r)
		return &exitError{code: exitOutputFailed, outcome: outcomeNotPrinted,
			err: fmt.Errorf("cannot print the token of %s; the lock was released: %s", quoteName(request.name),
				rootCause(err))}
	}
	ctx, cancel := context.WithCancelCause(lease.Context())
	defer cancel(nil)
	if onRequest.release {
		go func() {
			select {
			case <-lease.ReleaseRequested():
				cancel(errReleaseRequested)
			case <-ctx.Done():
			}
		}()
	}
	signals.waitForEnd(ctx)
	if err := lease.Err(); err != nil {
		printStoreMessage("%s is lost: %s", quoteName(request.name), lossText(err))
		r.addEvent(holdfast.EventLost, causeFields(err))
	}
	if err := request.releaseLease(lease.Release, lease.Err() != nil, r); err != nil {
		return lostError(err)
	}
	if errors.Is(context.Cause(ctx), errReleaseRequested) {
		return &exitError{code: exitOnRequest, outcome: outcomeReleasedOnRequest}
	}
	return &exitError{outcome: outcomeReleased}
}

// errReleaseRequested ends a hold because somebody asked for the lock.
var errReleaseRequested = errors.New("the release was requested")

// printHold prints that the lock is held: the token, or a record.
func printHold(store string, lease *holdfast.Lease, asJSON bool) error {
	if asJSON {
		return writeRecord(os.Stdout, recordHold, fields{"store": store, "lock": lease.Name(), "token": lease.Token(),
			"id": lease.ID(), "ref": lease.Ref()})
	}
	_, err := fmt.Fprintln(os.Stdout, lease.Token())
	return err
}

// waitForEnd waits for a signal that would end a program that catches none, or for the end of ctx.
func (s *signalQueue) waitForEnd(ctx context.Context) {
	for {
		select {
		case sig := <-s.ch:
			if n, ok := sig.(syscall.Signal); ok && !harmlessSignals[n] {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
