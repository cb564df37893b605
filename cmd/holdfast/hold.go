package main

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"
)

const holdHelp = `hold takes the lock NAME, prints its fencing token on a line of its own, and holds it until it is told to end by SIGINT
(Ctrl-C), SIGTERM, SIGHUP or another such signal. Then it gives the lock back and exits 0.

It exits 76 as soon as the lock is lost, and as run does if it is not acquired. The outcome in the record of --json is one of
run's, released when it was told to end, or not printed when the token could not be.`

func newHold(storeURL *string) *cobra.Command {
	f := lockFlags{store: storeURL}
	var json string
	c := &cobra.Command{
		Use:   "hold [flags] NAME",
		Short: "Hold a lock until told to end",
		Long:  holdHelp,
		Args:  exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return recorded(json, args[0], func(r *record) error {
				request, err := f.request(c, args[0], "hold")
				if err != nil {
					return err
				}
				return hold(request, *f.store, r)
			})
		},
		DisableFlagsInUseLine: true,
	}
	f.define(c)
	f.defineHolds(c)
	defineRecord(c, &json)
	return c
}

func hold(request *request, store string, r *record) error {
	signals := catchSignals()
	client, lease, err := request.acquired(store, signals, r)
	if client != nil {
		defer closeClient(client)
	}
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(os.Stdout, lease.Token()); err != nil {
		_ = request.giveBack(lease, false, r)
		return &exitError{code: exitUnwritten, outcome: outcomeUnwritten,
			err: fmt.Errorf("the token of %s cannot be printed, and so it is not held: %s", shown(request.name), bareReason(err))}
	}
	signals.wait(lease.Context())
	if err := lease.Err(); err != nil {
		say("%s is lost: %s", shown(request.name), lossReason(err))
		r.event("lost", fields{"reason": lossReason(err)})
	}
	if err := request.giveBack(lease, lease.Err() != nil, r); err != nil {
		return &exitError{code: exitLost, outcome: outcomeLost, why: lossReason(err)}
	}
	return &exitError{outcome: outcomeReleased}
}

// wait waits for a signal that would end a program that catches none, or for the end of ctx.
func (s *signals) wait(ctx context.Context) {
	for {
		select {
		case sig := <-s.ch:
			if n, ok := sig.(syscall.Signal); ok && !harmless[n] {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
