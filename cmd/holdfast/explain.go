package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
	"github.com/holdfast-go/holdfast/driver"
)

func newExplain(storeURL *string) *cobra.Command {
	f := runFlags{lockFlags: lockFlags{store: storeURL}}
	c := &cobra.Command{
		Use:   "explain [flags] NAME",
		Short: "Show what run would do with a lock, without doing it",
		Long: `explain takes the flags of run and changes nothing. It shows where in the store the lock is kept, for how long it would be
held, when it would be renewed, when the command would be ended, how long others wait for a holder that died, who holds
the lock now, and whether run would be refused now.`,
		Args: exactArgs("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			request, err := f.newRequest(c, args[0], "")
			if err != nil {
				return err
			}
			policy, err := f.killPolicy(c, f.ttl, f.maxHold)
			if err != nil {
				return err
			}
			return withClient(*storeURL, func(ctx context.Context, client *holdfast.Client) error {
				return printPlan(ctx, c.OutOrStdout(), client, request, policy)
			})
		},
		DisableFlagsInUseLine: true,
	}
	f.addRunFlags(c)
	groupFlags(c, lockFlagGroups, "")
	return c
}

// printPlan prints what run would do, from the flags, the promises of the store, and the state of the lock.
func printPlan(ctx context.Context, w io.Writer, client *holdfast.Client, r *lockRequest, policy guard.KillPolicy) error {
	lock, err := client.Inspect(ctx, r.name)
	if err != nil {
		return storeError(err)
	}
	_, limit := r.weightAndLimit()
	plan, err := r.newLockable(client).Explain()
	if err != nil {
		return storeError(err)
	}
	info := client.Info()
	rows := [][]string{
		{"lock", quoteName(r.name)},
		{"store", printableText(info.Store)},
		{"used as", describeKind(holdfast.Lock{Kind: r.kind, Limit: limit})},
	}
	for i, key := range plan.Keys {
		rows = append(rows, []string{[]string{"kept in", ""}[min(i, 1)], printableText(key)})
	}
	for _, note := range plan.Notes {
		rows = append(rows, []string{"note", printableText(note)})
	}
	margin := driver.Margin(plan.TTL)
	valid := plan.TTL - margin
	spare := (valid - plan.TTL/3 - policy.Grace).Truncate(time.Millisecond)
	rows = append(rows,
		[]string{"TTL", plan.TTL.String()},
		[]string{"renewed every", fmt.Sprintf("%v; a renewal may be late by %v", plan.TTL/3, spare)},
		[]string{"the command is signaled", fmt.Sprintf("with %s, %v after the last renewal that succeeded",
			signalName(policy.Signal), valid-policy.Grace)},
		[]string{"and killed", fmt.Sprintf("%v later, %v before anybody else can hold the lock", policy.Grace, margin)},
	)
	if d := r.opts.MinHold; d > 0 {
		rows = append(rows, []string{"held for", d.String() + " at least"})
	}
	if d := r.opts.MaxHold; d > 0 {
		rows = append(rows, []string{"held for", d.String() + " at most"})
	}
	rows = append(rows,
		[]string{"replaced, if its machine fails", "within " + plan.TTL.String()},
		[]string{"replaced, if it is killed", takeoverAfterKill(info, plan.TTL, policy)},
		[]string{"queue", describeQueue(info, r)},
		[]string{"now", describeState(lock)},
	)
	if err := r.checkRefusal(ctx, client, lock); err != nil {
		rows = append(rows, []string{"run now", "is refused: " + printableText(errorText(err))})
	}
	return writeTable(w, append(rows, warningRows(ctx, client)...))
}

// checkRefusal returns the error with which run would fail without waiting, or nil.
func (r *lockRequest) checkRefusal(ctx context.Context, client *holdfast.Client, lock holdfast.Lock) error {
	_, limit := r.weightAndLimit()
	semaphore := r.limit > 0 || lock.Kind == holdfast.KindSemaphore
	if semaphore && lock.Kind != "" && (lock.Kind != r.kind || lock.Limit != limit) {
		return r.mismatchError(lock, holdfast.ErrMismatch)
	}
	return r.checkSelfDeadlock(ctx, client)
}

// warningRows are the findings about the settings of the store. What could not be seen is left to doctor.
func warningRows(ctx context.Context, client *holdfast.Client) (rows [][]string) {
	add := func(text string) { rows = append(rows, []string{"warning", printableText(text)}) }
	findings, err := client.Examine(ctx)
	for _, f := range findings {
		if f.Severity != holdfast.SeverityUnknown {
			add(f.String())
		}
	}
	if err != nil {
		add("the settings of the store cannot be seen: " + errorText(err))
	}
	return rows
}

// takeoverAfterKill is how long others wait at most for a run that is killed: on stores that notice its death, until
// its guard has ended the command.
func takeoverAfterKill(i holdfast.Info, ttl time.Duration, policy guard.KillPolicy) string {
	if i.DeadHolderTimeout == 0 {
		return "within " + ttl.String()
	}
	return fmt.Sprintf("within %v, plus the time the command takes to end, %v at most",
		i.DeadHolderTimeout, policy.Grace)
}

// describeQueue is the order in which waiters are granted the lock, which depends on the store and on --fair.
func describeQueue(i holdfast.Info, r *lockRequest) string {
	switch {
	case r.noWait:
		return "none: --no-wait"
	case i.Order == holdfast.OrderAlways,
		i.Order == holdfast.OrderFairOnly && (r.opts.Fair || r.kind != holdfast.KindMutex):
		return "first come, first served"
	}
	return "in no particular order; see --fair"
}

func describeState(lock holdfast.Lock) string {
	if len(lock.Holders) == 0 {
		return "free"
	}
	text := fmt.Sprintf("%s, held by %s", describeKind(lock), describeHolders(lock.Holders))
	if n := len(lock.Waiters); n > 0 {
		text += fmt.Sprintf(", %d waiting", n)
	}
	return strings.TrimSpace(text)
}
