package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
	"github.com/holdfast-go/holdfast/driver"
)

func newExplain(storeURL *string) *cobra.Command {
	f := runFlags{lockFlags: lockFlags{store: storeURL}}
	var asJSON bool
	c := &cobra.Command{
		Use:   "explain [flags] NAME",
		Short: "Show what run would do with a lock, without doing it",
		Long: `explain takes the flags of run and changes nothing. It shows where in the store the lock is kept, for how long it would be
held, when it would be renewed, when the command would be ended, how long others wait for a holder that died, who holds
the lock now, and whether run would be refused now.`,
		Args: exactArgs("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			if len(f.also) > 0 {
				return usageError("explain shows one lock: leave --also out, and name one lock after the other")
			}
			request, err := f.newRequest(c, args[0], "")
			if err != nil {
				return err
			}
			request.opts.Progress = f.progress
			policy, err := f.killPolicy(c)
			if err != nil {
				return err
			}
			return withClient(*storeURL, func(ctx context.Context, client *holdfast.Client) error {
				plan, err := newRunPlan(ctx, client, request, policy)
				switch {
				case err != nil:
					return err
				case asJSON:
					return writeRecord(c.OutOrStdout(), recordPlan, plan.json())
				}
				return plan.print(c.OutOrStdout())
			})
		},
		DisableFlagsInUseLine: true,
	}
	f.addRunFlags(c)
	addJSONFlag(c, &asJSON)
	groupFlags(c, lockFlagGroups, "")
	return c
}

// runPlan is what run would do, from the flags, the promises of the store, and the state of the lock.
type runPlan struct {
	request  *lockRequest
	policy   guard.KillPolicy
	info     holdfast.Info
	lock     holdfast.Lock
	limit    int64
	plan     holdfast.Plan
	refusal  error // with which run would fail without waiting, or nil
	findings []holdfast.Finding
	unseen   error // why the settings of the store cannot be seen, or nil
}

// newRunPlan reads what a plan shows: the lock, what the request would write, why it would be refused now, and
// what doctor finds.
func newRunPlan(
	ctx context.Context, client *holdfast.Client, r *lockRequest, policy guard.KillPolicy,
) (p *runPlan, err error) {
	p = &runPlan{request: r, policy: policy}
	if p.lock, err = client.Inspect(ctx, r.name); err != nil {
		return nil, storeError(err)
	}
	if p.plan, err = r.request().Lockable(client).Explain(); err != nil {
		return nil, storeError(err)
	}
	_, p.limit = r.weightAndLimit()
	p.info, p.refusal = client.Info(), r.checkRefusal(ctx, client, p.lock)
	p.findings, p.unseen = client.Examine(ctx)
	return p, nil
}

// margin is how long the command has been killed before anybody else can hold the lock.
func (p *runPlan) margin() time.Duration { return driver.Margin(p.plan.TTL) }

// renewalSlack is by how much a renewal may be late.
func (p *runPlan) renewalSlack() time.Duration {
	return (p.plan.TTL - p.margin() - p.plan.TTL/3 - p.policy.Grace).Truncate(time.Millisecond)
}

// signaledAfter is how long after the last renewal that succeeded the command is signaled to end.
func (p *runPlan) signaledAfter() time.Duration { return p.plan.TTL - p.margin() - p.policy.Grace }

// print shows the plan to people.
func (p *runPlan) print(w io.Writer) error {
	r, ttl := p.request, p.plan.TTL
	rows := [][]string{
		{"lock", quoteName(r.name)},
		{"store", printableText(p.info.Store)},
		{"used as", describeKind(holdfast.Lock{Kind: r.kind, Limit: p.limit})},
	}
	for i, key := range p.plan.Keys {
		rows = append(rows, []string{[]string{"kept in", ""}[min(i, 1)], printableText(key)})
	}
	for _, note := range p.plan.Notes {
		rows = append(rows, []string{"note", printableText(note)})
	}
	rows = append(rows,
		[]string{"TTL", ttl.String()},
		[]string{"renewed every", fmt.Sprintf("%v; a renewal may be late by %v", ttl/3, p.renewalSlack())},
		[]string{"the command is signaled", fmt.Sprintf("with %s, %v after the last renewal that succeeded",
			signalName(p.policy.Signal), p.signaledAfter())},
		[]string{"and killed", fmt.Sprintf("%v later, %v before anybody else can hold the lock",
			p.policy.Grace, p.margin())},
	)
	if d := r.opts.MinHold; d > 0 {
		rows = append(rows, []string{"held for", d.String() + " at least"})
	}
	if d := r.opts.MaxHold; d > 0 {
		rows = append(rows, []string{"held for", d.String() + " at most"})
	}
	if d := r.opts.Progress; d > 0 {
		rows = append(rows, []string{"held for", d.String() + " at most without progress of the command"})
	}
	rows = append(rows,
		[]string{"replaced, if its machine fails", "within " + ttl.String()},
		[]string{"replaced, if it is killed", takeoverAfterKill(p.info, ttl, p.policy)},
		[]string{"queue", describeQueue(p.info, r)},
		[]string{"now", describeState(p.lock)},
	)
	if p.refusal != nil {
		rows = append(rows, []string{"run now", "is refused: " + printableText(errorText(p.refusal))})
	}
	return writeTable(w, append(rows, warningRows(p.findings, p.unseen)...))
}

// json is the plan for programs.
func (p *runPlan) json() fields {
	r, ttl := p.request, p.plan.TTL
	f := fields{
		"store": p.info.Store, "lock": r.name, "kind": r.kind, "limit": p.limit,
		"keys": append([]string{}, p.plan.Keys...), "notes": append([]string{}, p.plan.Notes...),
		"ttl_ms": shown.Millis(ttl), "renew_every_ms": shown.Millis(ttl / 3),
		"renewal_slack_ms": shown.Millis(p.renewalSlack()),
		"signal":           signalName(p.policy.Signal), "signaled_after_ms": shown.Millis(p.signaledAfter()),
		"grace_ms": shown.Millis(p.policy.Grace), "margin_ms": shown.Millis(p.margin()),
		"dead_machine_ms": shown.Millis(ttl), "killed_holder_ms": shown.Millis(killTakeover(p.info, ttl, p.policy)),
		"queue": queueCode(p.info, r), "now": shown.NewLock(p.info, p.lock, shown.PlainRef),
		"findings": shown.NewFindings(p.findings),
	}
	if d := r.opts.MinHold; d > 0 {
		f["min_hold_ms"] = shown.Millis(d)
	}
	if d := r.opts.MaxHold; d > 0 {
		f["max_hold_ms"] = shown.Millis(d)
	}
	if d := r.opts.Progress; d > 0 {
		f["progress_ms"] = shown.Millis(d)
	}
	if p.refusal != nil {
		refused := fields{"message": errorText(p.refusal)}
		if code := failureReasonOf(p.refusal); code != "" {
			refused["reason"] = code
		}
		f["refused"] = refused
	}
	if p.unseen != nil {
		f["findings_message"] = errorText(p.unseen)
	}
	return f
}

// checkRefusal returns the error with which run would fail without waiting, or nil.
func (r *lockRequest) checkRefusal(ctx context.Context, client *holdfast.Client, lock holdfast.Lock) error {
	_, limit := r.weightAndLimit()
	semaphore := r.limit > 0 || lock.Kind == holdfast.KindSemaphore
	if semaphore && lock.Kind != "" && (lock.Kind != r.kind || lock.Limit != limit) {
		return r.mismatchError(r.name, lock, holdfast.ErrMismatch)
	}
	return r.checkSelfDeadlock(ctx, client)
}

// warningRows are the findings about the settings of the store. What could not be seen is left to doctor, unless
// nothing could.
func warningRows(findings []holdfast.Finding, unseen error) (rows [][]string) {
	add := func(text string) { rows = append(rows, []string{"warning", printableText(text)}) }
	for _, f := range findings {
		if f.Severity != holdfast.SeverityUnknown {
			add(f.String())
		}
	}
	if unseen != nil {
		add("the settings of the store cannot be seen: " + errorText(unseen))
	}
	return rows
}

// killTakeover is how long others wait at most for a run that is killed: on stores that notice its death, until its
// guard has ended the command.
func killTakeover(i holdfast.Info, ttl time.Duration, policy guard.KillPolicy) time.Duration {
	if i.DeadHolderTimeout == 0 {
		return ttl
	}
	return i.DeadHolderTimeout + policy.Grace
}

// takeoverAfterKill says for people what killTakeover says for programs.
func takeoverAfterKill(i holdfast.Info, ttl time.Duration, policy guard.KillPolicy) string {
	if i.DeadHolderTimeout == 0 {
		return "within " + ttl.String()
	}
	return fmt.Sprintf("within %v, plus the time the command takes to end, %v at most",
		i.DeadHolderTimeout, policy.Grace)
}

// queueDescriptions describe the codes of queueCode.
var queueDescriptions = map[string]string{
	"none": "none: --no-wait", "arrival": "first come, first served", "unordered": "in no particular order; see --fair",
}

// queueCode is the order in which waiters are granted the lock, which depends on the store and on --fair.
func queueCode(i holdfast.Info, r *lockRequest) string {
	switch {
	case r.noWait:
		return "none"
	case i.Order == holdfast.OrderAlways,
		i.Order == holdfast.OrderFairOnly && (r.opts.Fair || r.kind != holdfast.KindMutex):
		return "arrival"
	}
	return "unordered"
}

// describeQueue says for people what queueCode says for programs.
func describeQueue(i holdfast.Info, r *lockRequest) string { return queueDescriptions[queueCode(i, r)] }

// describeState says in one line who holds the lock and how many wait.
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
