package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/torture"
)

// The exit codes of torture besides 0: every promise was kept.
const (
	exitBroken   = 1 // a promise was broken
	exitUnproven = 2 // there were too few faults or grants
)

// tortureRun is one call of torture.
type tortureRun struct {
	store    *string
	config   torture.Config
	faults   []string
	locks    []string
	asJSON   bool
	htmlFile string
	html     *os.File // htmlFile, opened
	command  string   // that repeats the run
}

func newTorture(storeURL *string) *cobra.Command {
	t := tortureRun{store: storeURL}
	c := &cobra.Command{
		Use:   "torture",
		Short: "Put the store under faults, and judge whether its locks keep their promises",
		Long:  tortureHelp,
		Args:  exactArgs(),
		RunE:  func(c *cobra.Command, _ []string) error { return t.run(c, c.OutOrStdout()) },
	}
	o, flags := &t.config, c.Flags()
	flags.DurationVar(&o.For, "for", 2*time.Minute, "how long there are faults")
	flags.IntVar(&o.Workers, "workers", 8, "how many worker processes there are, 2 to 64")
	flags.Uint64Var(&o.Seed, "seed", 0, "the seed of all random choices (default: another one each time)")
	flags.DurationVar(&o.TTL, "ttl", 0, "the TTL of all claims (default 2s, or the smallest that the store allows)")
	flags.StringSliceVar(&t.faults, "faults", nil,
		"which faults of links and workers: "+joinNames(torture.Faults)+"; or none (default: all that the store has)")
	flags.DurationVar(&o.FaultEvery, "fault-every", 500*time.Millisecond, "mean time between two of them")
	flags.StringSliceVar(&t.locks, "locks", nil,
		"which kinds of locks: "+joinNames(torture.Kinds)+" (default: all that the store has)")
	flags.Float64Var(&o.Rate, "rate", 100, "how many claims all workers make per second, about")
	flags.BoolVar(&o.BesideOthers, "beside-others", false, "go on although there are other locks in the store")
	flags.StringVar(&o.ServerFault, "server-fault", "", "`COMMAND` for sh that makes a fault of the server")
	flags.StringVar(&o.ServerHeal, "server-heal", "", "`COMMAND` for sh that ends the fault of the server")
	flags.DurationVar(&o.ServerEvery, "server-every", 20*time.Second, "time between two faults of the server")
	flags.DurationVar(&o.ServerFor, "server-for", 5*time.Second, "how long a fault of the server lasts")
	flags.DurationVar(&o.HookTimeout, "hook-timeout", 30*time.Second, "how long a command for the server may take")
	addJSONFlag(c, &t.asJSON)
	flags.StringVar(&t.htmlFile, "html", "", "write a page with the timeline to `FILE`")
	return c
}

const tortureHelp = `torture shows whether this store, as it is set up, keeps the promises of locks when links drop, processes die and
servers fail. It starts worker processes that contend for locks below a prefix of its own (holdfast-torture-...). Each
reaches the store through a link of its own. torture cuts, delays and resets the links; it stops workers, kills and
restarts them, and shifts their clocks. Faults of the servers are yours to make, by two commands:

    holdfast torture --server-fault 'docker pause redis-1' --server-heal 'docker unpause redis-1'

It then judges what the workers believed, wrote and were told:
  - no two holders believe at the same time that a lock is theirs; limits are kept
  - fencing tokens rise, and a fenced resource accepts no stale write
  - a holder learns that its lock is lost; a key of a run ledger succeeds once
  - a fair lock is granted in the order of arrival; after the faults everybody gets a turn; nothing is left behind

A run with fewer than 100 hand-overs, 30 faults, or 3 faults of each kind proves nothing, and says so.

Use a store that nobody needs: torture makes about 100 claims per second. If there are other locks in the store, it
refuses, unless --beside-others is given. It removes what it has put into the store, even after Ctrl-C. What most stores
keep of an unused lock for some minutes, so that tokens cannot fall, goes by itself. If torture is killed, its claims
expire after their TTL.

What the faults are:
  cut    a link passes nothing on, in both directions or only replies       delay  it passes everything on late
  reset  the connections of a worker end                                    skew   the clocks of a worker are shifted
  pause  a worker is stopped for up to two TTLs                             kill   a worker is killed and restarted
A directory of files has no links, so cut, delay and reset do not apply to it.

Exit codes:
  0   sound: every promise was kept
  1   broken: a promise was broken
  2   nothing proven: too few faults or grants
  64  wrong usage, or there are other locks in the store
  69  the store cannot be used`

// newTortureWorker is the worker process of torture.
func newTortureWorker() *cobra.Command {
	return &cobra.Command{
		Use:    "torture-worker",
		Hidden: true,
		Args:   exactArgs(),
		RunE: func(*cobra.Command, []string) error {
			signal.Ignore(syscall.SIGPIPE)
			return torture.Work(os.Stdin, os.Stdout)
		},
	}
}

// joinNames lists codes for a help text.
func joinNames[T ~string](all []T) string {
	names := make([]string, len(all))
	for i, n := range all {
		names[i] = string(n)
	}
	return strings.Join(names, ", ")
}

// chooseNames are the named ones of all. If none are named, they are those that fit.
func chooseNames[T ~string](flag string, names []string, all []T, fits func(T) bool, unfit string) (chosen []T, err error) {
	if len(names) == 0 {
		return slices.DeleteFunc(slices.Clone(all), func(n T) bool { return !fits(n) }), nil
	}
	for _, name := range names {
		switch n := T(name); {
		case !slices.Contains(all, n):
			return nil, usageError("--%s: %q is unknown; known are %s", flag, name, joinNames(all))
		case !fits(n):
			return nil, usageError("--%s: this store has no %s: %s", flag, n, unfit)
		case !slices.Contains(chosen, n):
			chosen = append(chosen, n)
		}
	}
	return chosen, nil
}

// checkFlags checks what does not depend on the store.
func (t *tortureRun) checkFlags(c *cobra.Command) error {
	o := &t.config
	switch {
	case o.For < time.Second:
		return usageError("--for must be 1s or more, not %v", o.For)
	case o.Workers < 2 || o.Workers > 64:
		return usageError("--workers must be 2 to 64: one worker alone has nobody to contend with")
	case o.FaultEvery < 10*time.Millisecond:
		return usageError("--fault-every must be 10ms or more, not %v", o.FaultEvery)
	case !(o.Rate >= 1 && o.Rate <= 100_000):
		return usageError("--rate must be 1 to 100000")
	case o.ServerHeal != "" && o.ServerFault == "":
		return usageError("--server-heal needs --server-fault")
	case o.ServerFault != "" && (o.ServerEvery < time.Second || o.ServerFor < 0 || o.HookTimeout < time.Second):
		return usageError("--server-every and --hook-timeout must be 1s or more, and --server-for not negative")
	}
	if !c.Flags().Changed("seed") {
		o.Seed = uint64(rand.Uint32())
	}
	return nil
}

// fitStore fills in what depends on the store, and checks it.
func (t *tortureRun) fitStore(where string, client *holdfast.Client) (err error) {
	o, info := &t.config, client.Info()
	o.Store = where
	if u, err := url.Parse(where); err == nil {
		o.Files = u.Scheme == "file"
	}
	if o.TTL == 0 {
		o.TTL = max(2*time.Second, info.MinTTL)
	}
	o.CalmTimeout, o.LeftoverTimeout = 4*o.TTL+30*time.Second, 3*o.TTL+20*time.Second
	if o.TTL < info.MinTTL || o.TTL > time.Minute {
		return usageError("--ttl must be %v to 1m, not %v", info.MinTTL, o.TTL)
	}
	if !slices.Equal(t.faults, []string{"none"}) {
		o.Faults, err = chooseNames("faults", t.faults, torture.Faults,
			func(f torture.Fault) bool { return !o.Files || !f.NeedsLink() }, "it is no server on a network")
		if err != nil {
			return err
		}
	}
	hasLedger := true
	if _, err := client.Ledger(defaultLedger, nil).Info(context.Background()); errors.Is(err, holdfast.ErrUnsupported) {
		hasLedger = false
	}
	o.Kinds, err = chooseNames("locks", t.locks, torture.Kinds, func(k torture.Kind) bool {
		return torture.Carries(info, k) && (k != torture.Ledger || hasLedger)
	}, "see holdfast stores")
	return err
}

func (t *tortureRun) run(c *cobra.Command, w io.Writer) error {
	if err := t.checkFlags(c); err != nil {
		return err
	}
	choice, err := resolveStore(*t.store)
	if err != nil {
		return err
	}
	// After the first signal the run is ended in order, and a second one ends this program at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, stop)
	store, client, err := openStore(ctx, *t.store, nil)
	if err != nil {
		return err
	}
	defer closeClient(client)
	if err := t.fitStore(choice.url, client); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	t.config.Worker = func() *exec.Cmd { return exec.Command(program, "torture-worker") }
	t.config.LongHolds = 12
	t.config.ProgressEvery = 10 * time.Second
	t.config.Progress = func(line string) { printMessage("%s", line) }
	if t.htmlFile != "" { // it is known at once that the page can be written
		if t.html, err = os.Create(t.htmlFile); err != nil {
			return usageError("--html: %s", rootCause(err))
		}
		defer t.html.Close()
	}
	t.command = t.repeatCommand(client.Info().Store)
	report, err := torture.Run(ctx, torture.NewSubject(store, client), t.config)
	switch {
	case errors.Is(err, torture.ErrOthers):
		return exitWith(exitUsage, "%s; use a store that nobody needs, or give --beside-others", err)
	case err != nil:
		return storeError(err)
	}
	return t.print(w, report)
}

// print writes the report, and returns the exit code.
func (t *tortureRun) print(w io.Writer, report *torture.Report) error {
	report.Command, report.Version = t.command, buildVersion()
	if t.html != nil {
		if err := errors.Join(report.WritePage(t.html), t.html.Close()); err != nil {
			return exitWith(exitOutputFailed, "the page cannot be written: %s", rootCause(err))
		}
	}
	var err error
	if t.asJSON {
		err = writeRecord(w, recordTorture, tortureAsJSON(report))
	} else {
		_, err = io.WriteString(w, report.Text())
	}
	if err != nil {
		return err
	}
	switch report.Outcome {
	case torture.Broken:
		return &exitError{code: exitBroken}
	case torture.Unproven:
		return &exitError{code: exitUnproven}
	}
	return nil
}

// repeatCommand is the command line that makes the same random choices again. The store's URL is shown without its
// secrets.
func (t *tortureRun) repeatCommand(store string) string {
	o := t.config
	args := []string{"holdfast torture --store", quoteArgument(store), fmt.Sprintf("--for %v --workers %d --seed %d --ttl %v", o.For,
		o.Workers, o.Seed, o.TTL)}
	faults := "none"
	if len(o.Faults) > 0 {
		faults = strings.ReplaceAll(joinNames(o.Faults), " ", "")
	}
	args = append(args, "--faults", faults, "--locks", strings.ReplaceAll(joinNames(o.Kinds), " ", ""),
		fmt.Sprintf("--fault-every %v --rate %v", o.FaultEvery, o.Rate))
	if o.ServerFault != "" {
		args = append(args, "--server-fault", quoteArgument(o.ServerFault), "--server-heal", quoteArgument(o.ServerHeal),
			fmt.Sprintf("--server-every %v --server-for %v", o.ServerEvery, o.ServerFor))
	}
	return strings.Join(args, " ")
}

// quoteArgument quotes a text for a shell.
func quoteArgument(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
