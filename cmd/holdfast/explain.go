package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

func newExplain(storeURL *string) *cobra.Command {
	f := runFlags{lockFlags: lockFlags{store: storeURL}}
	c := &cobra.Command{
		Use:   "explain [flags] NAME",
		Short: "Show what run would do with a lock, and change nothing",
		Long: `explain takes the flags of run and shows what they come to: where the lock stands in the store, for how long, when it is
renewed and when the command would be ended, how long others wait for a holder that died, who holds it now, and whether run
would be refused as it stands.`,
		Args: exactArgs("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			request, err := f.newRequest(c, args[0], "")
			if err != nil {
				return err
			}
			how, err := f.killPolicy(c)
			if err != nil {
				return err
			}
			return withClient(*storeURL, func(ctx context.Context, client *holdfast.Client) error {
				return printPlan(ctx, c.OutOrStdout(), client, request, how)
			})
		},
		DisableFlagsInUseLine: true,
	}
	f.addRunFlags(c)
	return c
}

func printPlan(ctx context.Context, w io.Writer, client *holdfast.Client, r *lockRequest, how killPolicy) error {
	lock, err := client.Inspect(ctx, r.name)
	if err != nil {
		return storeError(err)
	}
	_, limit := r.weightAndLimit()
	plan, err := r.lockable(client).Explain()
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
		rows = append(rows, []string{[]string{"stands in", ""}[min(i, 1)], printableText(key)})
	}
	for _, note := range plan.Notes {
		rows = append(rows, []string{"note", printableText(note)})
	}
	rows = append(rows,
		[]string{"TTL", plan.TTL.String()},
		[]string{"renewed every", fmt.Sprintf("%v; a renewal may be late by %v", plan.TTL/3, (plan.TTL - plan.TTL/3 - driver.Margin(plan.TTL) - how.Grace).Truncate(time.Millisecond))},
		[]string{"the command is told to end", fmt.Sprintf("with %s, %v after the last renewal that came through", signalName(how.Signal), plan.TTL-driver.Margin(plan.TTL)-how.Grace)},
		[]string{"and killed", fmt.Sprintf("%v later, %v before the lock can be anybody else's", how.Grace, driver.Margin(plan.TTL))},
	)
	if d := r.opts.MinHold; d > 0 {
		rows = append(rows, []string{"kept for", d.String() + " at least"})
	}
	if d := r.opts.MaxHold; d > 0 {
		rows = append(rows, []string{"held for", d.String() + " at most"})
	}
	rows = append(rows,
		[]string{"replaced, if its machine dies", "within " + plan.TTL.String()},
		[]string{"replaced, if it is killed", takeoverAfterKill(info, plan.TTL, how)},
		[]string{"in line", describeQueue(info, r)},
		[]string{"now", describeState(lock)},
	)
	if err := r.checkRefusal(ctx, client, lock); err != nil {
		rows = append(rows, []string{"run now", "is refused: " + printableText(errorText(err))})
	}
	return writeTable(w, append(rows, warningRows(ctx, client)...))
}

// checkRefusal is why run would not even wait, if it would not.
func (r *lockRequest) checkRefusal(ctx context.Context, client *holdfast.Client, lock holdfast.Lock) error {
	_, limit := r.weightAndLimit()
	if (r.limit > 0 || lock.Kind == holdfast.KindSemaphore) && lock.Kind != "" && (lock.Kind != r.kind || lock.Limit != limit) {
		return r.mismatchError(lock, holdfast.ErrMismatch)
	}
	return r.checkSelfDeadlock(ctx, client)
}

// warningRows are what the store's set-up is to be warned of.
func warningRows(ctx context.Context, client *holdfast.Client) (rows [][]string) {
	ws, err := client.Warnings(ctx)
	if err != nil {
		ws = []string{"the settings of the store cannot be seen: " + errorText(err)}
	}
	for _, text := range ws {
		rows = append(rows, []string{"warning", printableText(text)})
	}
	return rows
}

// takeoverAfterKill is how long others wait at worst for a run that is killed: on stores that notice, until its guard has ended
// the command.
func takeoverAfterKill(i holdfast.Info, ttl time.Duration, how killPolicy) string {
	if i.DeadHolderTimeout == 0 {
		return "within " + ttl.String()
	}
	return fmt.Sprintf("within %v, and what the command takes to end, %v at most", i.DeadHolderTimeout, how.Grace)
}

func describeQueue(i holdfast.Info, r *lockRequest) string {
	switch {
	case r.noWait:
		return "not at all"
	case i.Order == holdfast.OrderAlways, i.Order == holdfast.OrderFairOnly && (r.opts.Fair || r.kind != holdfast.KindMutex):
		return "first come, first served"
	}
	return "in no certain order; see --fair"
}

func describeState(lock holdfast.Lock) string {
	if len(lock.Holders) == 0 {
		return "free"
	}
	text := fmt.Sprintf("%s, held by %s", describeKind(lock), describeHolders(lock.Holders))
	if n := len(lock.Waiters); n > 0 {
		text += fmt.Sprintf(", waited for by %d", n)
	}
	return strings.TrimSpace(text)
}
