package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/acquire"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
	"github.com/holdfast-go/holdfast/driver"
)

// maxDefaultGrace bounds the grace if --grace is not given.
const maxDefaultGrace = 5 * time.Second

// runFlags are the flags of run, which come before NAME.
type runFlags struct {
	lockFlags
	endFlags
	progressFlags
	messageFlags
	storeWaitFlag
	also        lockNames
	events      string
	metricsFile string
	onRequest   requestAction
}

// endFlags say how the command is ended when its lease is about to be lost. run and once have them.
type endFlags struct {
	signal string
	grace  time.Duration
}

func (f *endFlags) addEndFlags(c *cobra.Command, what string) {
	c.Flags().StringVar(&f.signal, "signal", "TERM",
		"`SIGNAL` that asks the command to end when the "+what+" is about to be lost")
	c.Flags().DurationVar(&f.grace, "grace", 0,
		"time between --signal and SIGKILL (default a sixth of the TTL, at most 5s)")
}

func newRun(storeURL *string) *cobra.Command {
	f := runFlags{lockFlags: lockFlags{store: storeURL}}
	c := &cobra.Command{
		Use:     "run [flags] NAME [--] COMMAND [ARGUMENT...]",
		Short:   "Run a command under a lock",
		Long:    runHelp,
		Example: runExamples,
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError("the lock's NAME is missing")
			}
			return withEventFile(f.events, fields{"lock": args[0]}, func(r *eventFile) error {
				return withTelemetry(f.metricsFile, "run", args[0], func(t *telemetry) error {
					job, err := f.newJob(c, args)
					if err != nil {
						return err
					}
					job.request.telemetry = t
					return f.silenceSkip(job.runCommand(r))
				})
			})
		},
		DisableFlagsInUseLine: true,
	}
	groupFlags(c, lockFlagGroups, runAfterFlags)
	c.Flags().SetInterspersed(false) // arguments after NAME belong to the command
	f.addRunFlags(c)
	f.addMessageFlags(c)
	f.addStoreWaitFlag(c)
	addEventsFlag(c, &f.events)
	addMetricsFlag(c, &f.metricsFile)
	return c
}

func (f *runFlags) addRunFlags(c *cobra.Command) {
	f.addFlags(c)
	f.addHoldFlags(c)
	f.addEndFlags(c, "lock")
	f.addProgressFlags(c)
	f.onRequest.addFlag(c)
	c.Flags().Var(&f.also, "also", "hold the lock `NAME` as well, all or none; may be given several times")
}

// newJob makes a job of the command line. It looks for the command before the lock is acquired, so that a typing
// error is reported at once, and not after an hour of waiting.
func (f *runFlags) newJob(c *cobra.Command, args []string) (*job, error) {
	argv := commandLine(args)
	request, err := f.newRequest(c, args[0], commandNote(argv))
	if err != nil {
		return nil, err
	}
	if err := f.also.check(c, args[0]); err != nil {
		return nil, err
	}
	request.also = f.also
	how, err := f.killPolicy(c)
	if err == nil {
		err = f.checkMessageFlags()
	}
	switch {
	case err != nil:
		return nil, err
	case len(argv) == 0 && c.ArgsLenAtDash() == 0:
		return nil, usageError("the lock's NAME is missing: it comes before --")
	case len(argv) == 0:
		return nil, usageError("the COMMAND to run under %s is missing", quoteName(args[0]))
	}
	path, err := findCommand(argv, "NAME")
	if err != nil {
		return nil, err
	}
	request.opts.Progress = f.progress
	request.messages, request.storeWait = f.messageFlags, f.storeWaitLimit(c, f.wait)
	return &job{path: path, argv: argv, store: *f.store, policy: how, progress: f.progressFlags, onRequest: f.onRequest,
		request: request}, nil
}

// killPolicy checks the flags that say when and how the command is ended.
func (f *runFlags) killPolicy(c *cobra.Command) (guard.KillPolicy, error) {
	if err := f.checkProgressFlags(c); err != nil {
		return guard.KillPolicy{}, err
	}
	return f.endFlags.killPolicy(c, f.ttl, bound{"max-hold", f.maxHold}, bound{"progress", f.progress})
}

// bound is a flag that ends the lease after a time; 0: it does not.
type bound struct {
	flag  string
	after time.Duration
}

// killPolicy is how the command is ended. The grace must leave time for a late renewal: one that is due after a third
// of the TTL, and takes a twentieth of the TTL, must not end the command. Nor may the grace be most of what a bound
// allows.
func (f *endFlags) killPolicy(c *cobra.Command, ttl time.Duration, bounds ...bound) (guard.KillPolicy, error) {
	sig, err := parseSignal(f.signal)
	if err != nil {
		return guard.KillPolicy{}, err
	}
	longest := ttl - ttl/3 - ttl/20 - driver.Margin(ttl)
	narrowest := bound{"ttl", ttl}
	for _, b := range bounds {
		if b.after > 0 && b.after/2 < longest {
			narrowest, longest = b, b.after/2
		}
	}
	grace := min(maxDefaultGrace, ttl/6, longest)
	if c.Flags().Changed("grace") {
		grace = f.grace
	}
	switch {
	case grace < 0:
		return guard.KillPolicy{}, usageError("--grace cannot be negative")
	case grace > longest && narrowest.flag != "ttl":
		return guard.KillPolicy{}, usageError("--grace %v does not fit: with --%s %v it can be %v at most",
			grace, narrowest.flag, narrowest.after, longest)
	case grace > longest:
		return guard.KillPolicy{}, usageError("--grace %v does not fit: with a TTL of %v it can be %v at most",
			grace, ttl, longest.Truncate(time.Millisecond))
	}
	return guard.KillPolicy{Signal: sig, Grace: grace, CheckInterval: min(ttl/10, time.Second)}, nil
}

// commandLine is the COMMAND and its arguments, after NAME or KEY. It is empty if there is none.
func commandLine(args []string) []string {
	argv := args[1:]
	if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	}
	return argv
}

// findCommand finds the command of argv as a shell would. Flags come before the argument after.
func findCommand(argv []string, after string) (string, error) {
	name := argv[0]
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		return path, nil
	case strings.HasPrefix(name, "-") && errors.Is(err, exec.ErrNotFound):
		return "", cannotRun(exitNotFound, "there is no command %s; flags come before %s", quoteName(name), after)
	case errors.Is(err, exec.ErrNotFound) && after == "NAME" && slices.Contains(argv, "--"):
		return "", cannotRun(exitNotFound, "there is no command %s; to hold several locks, name each other one by --also",
			quoteName(name))
	case (errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist)) && strings.ContainsAny(name, " ;&|<>$"):
		return "", cannotRun(exitNotFound, "there is no command %s; a line for a shell is run by: sh -c LINE", quoteName(name))
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		return "", cannotRun(exitNotFound, "there is no command %s", quoteName(name))
	case errors.Is(err, exec.ErrDot):
		return "", cannotRun(exitNotFound, "%s is only in the current directory; write ./%s", quoteName(name), name)
	}
	return "", cannotRun(exitCannotRun, "%s cannot be run: %s", quoteName(name), rootCause(err))
}

// cannotRun is an error about the command itself, and not about the lock.
func cannotRun(code int, format string, args ...any) error {
	exit := exitWith(code, format, args...)
	exit.outcome = outcomeCannotRun
	return exit
}

// commandNote is what others see next to the owner: the name of the command, without its arguments, which may be
// secret.
func commandNote(argv []string) string {
	if len(argv) == 0 {
		return ""
	}
	name := strings.ReplaceAll(strings.ToValidUTF8(filepath.Base(argv[0]), "?"), "\x00", "?")
	return name[:min(len(name), 255)]
}

// job is one command to be run under one lock.
type job struct {
	path    string
	argv    []string
	store   string
	policy  guard.KillPolicy
	request *lockRequest

	progress  progressFlags
	onRequest requestAction
}

// runCommand acquires the lock, runs the command, and releases the lock when the last process has ended.
func (j *job) runCommand(r *eventFile) error {
	signals := catchSignals()
	client, lease, err := j.request.acquireUntilSignal(j.store, signals, r)
	if err != nil {
		if client != nil {
			closeClient(client)
		}
		return err
	}
	opts := j.request.opts
	var maxHoldEnd time.Duration
	if opts.MaxHold > 0 {
		maxHoldEnd = guard.BoottimeNow() + opts.MaxHold // now, because to start the guard may take long
	}
	held, stop := j.request.allHeld(lease, maxHoldEnd)
	defer stop()
	w := &wrapper{
		name: lease.Name(), lease: held, lostEvent: holdfast.EventLost, clock: client.Info().Clock,
		ttl: opts.TTL, policy: j.policy, maxHoldEnd: maxHoldEnd, signals: signals, watched: j.progress,
		events: r, releaseRequested: acquire.ReleaseRequested(held.Context(), j.request.leases(lease)), onRequest: j.onRequest,
	}
	env := j.request.commandEnvironment(os.Environ(), client, lease)
	env = j.request.telemetry.environment(env)
	w.superviseCommand(j.request.store, guardedCommand{path: j.path, argv: j.argv, env: env})
	if len(w.result.escaped) > 0 {
		// The lock was lost, and what is left cannot be ended. Nothing is released: the guard stays and keeps trying.
		r.addFields(fields{"escaped": w.result.escaped})
		return w.result.exitError(j.argv[0], w.result.loss)
	}
	release := func() error { return j.request.releaseAll(lease) }
	if w.result.nothingRan() {
		release = func() error { return j.request.releaseUnused(client, lease) }
	}
	lost := j.request.releaseLease(release, w.result.loss != nil, r)
	w.closeGuard()
	closeClient(client)
	return w.result.exitError(j.argv[0], lost)
}

// exitError turns what became of the command and of the lease into this program's exit code. released is the error of a
// release that found the lease lost.
func (e *runResult) exitError(command string, released error) error {
	switch {
	case e.loss != nil:
		return lostError(e.loss)
	case released != nil:
		return lostError(released)
	case e.startError != nil && e.earlySignal != 0:
		return &exitError{code: exitSignal + int(e.earlySignal), outcome: outcomeInterrupted}
	case e.startError != nil:
		return startFailure(command, e.startError)
	case e.requested:
		return &exitError{code: exitOnRequest, outcome: outcomeReleasedOnRequest}
	}
	return commandExitError(e.status)
}

// startFailure is the error of a command that could not be started, with the exit code that a shell would use.
func startFailure(name string, err error) error {
	code := exitCannotRun
	if errors.Is(err, os.ErrNotExist) { // it was removed meanwhile, or its interpreter does not exist
		code = exitNotFound
	}
	return cannotRun(code, "%s cannot be run: %s", quoteName(name), cmp.Or(describeScript(name, err), rootCause(err)))
}

// describeScript says why the system does not start a script, whose first line says which program reads it. It returns
// nothing for other programs and other errors.
func describeScript(name string, err error) string {
	path, pathErr := exec.LookPath(name)
	if pathErr != nil {
		return ""
	}
	f, openErr := os.Open(path)
	if openErr != nil {
		return ""
	}
	defer f.Close()
	start := make([]byte, 256)
	n, _ := io.ReadFull(f, start)
	line, _, _ := strings.Cut(string(start[:n]), "\n")
	interpreter, isScript := strings.CutPrefix(line, "#!")
	switch {
	case isScript && strings.HasSuffix(line, "\r") && errors.Is(err, os.ErrNotExist):
		return "its lines end as on Windows (CRLF), so its first line names no program; remove the carriage returns"
	case isScript && errors.Is(err, os.ErrNotExist):
		return fmt.Sprintf("its first line names %s, which does not exist", quoteName(strings.TrimSpace(interpreter)))
	case errors.Is(err, syscall.ENOEXEC) && !strings.ContainsRune(line, 0):
		return "its first line does not say which program reads it; begin it with #!/bin/sh, or write sh before its name"
	}
	return ""
}

// commandExitError is the exit code of a command that ended on its own or by a signal; nil for 0.
func commandExitError(status syscall.WaitStatus) error {
	switch {
	case status.Signaled():
		sig := status.Signal()
		return &exitError{code: exitSignal + int(sig), outcome: outcomeKilled, message: "killed by " + signalName(sig)}
	case status.ExitStatus() != 0:
		return &exitError{code: status.ExitStatus(), outcome: outcomeExited}
	}
	return nil
}
