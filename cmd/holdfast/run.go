package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/driver"
)

// maxDefaultGrace is how long a command that is told to end may take, if nothing else is said.
const maxDefaultGrace = 5 * time.Second

const runHelp = `run takes the lock NAME, runs the command, and gives the lock back when the command and all that it has started are gone.

The command is run as it stands, by no shell, with this program's input and output. It finds the lock's name, its fencing
token and the id of its claim in HOLDFAST_LOCK, HOLDFAST_TOKEN and HOLDFAST_ID. Flags of run come before NAME.

  one at a time   run NAME excludes every other run of NAME on the same store.
  --shared        runs of NAME with --shared go together, and exclude those without, as flock's -s and -x do. A shared run
                  that finds NAME taken by a plain one looks again from time to time; it is not in line with others.
  --limit N       up to N runs of NAME at once; with --permits K this one counts for K. All runs of NAME give the same N.

If the lock cannot be renewed, the command and all its descendants are told to end (--signal) for --grace before the lock
could be anybody else's, and are killed before that moment. A lock that an operator breaks, or that is gone, ends them too.
A process of its own sees to that, the guard, whatever becomes of this program: whether it is stopped, killed, or hangs.

` + descendantsHelp + `

Signals go on to the command; those of the terminal, and others that go to the whole process group, reach it by themselves (on
Linux; if the machine is very busy, and elsewhere, the command may have one of those to the group twice. In a unit of systemd
give KillMode=mixed, unless run is what ExecStart= starts). A second Ctrl-C at the terminal, 0.2 s to 5 s after the first, kills.
Ctrl-Z stops the command and this program; with fg they go on if the lock still stands by then, and it does for less than a TTL.
SIGHUP and SIGINT that are ignored when this program starts, as under nohup, are ignored in the command; others are not, and the
command itself must ignore them: run NAME sh -c 'trap "" TERM; exec "$0" "$@"' COMMAND...

HOLDFAST_HELD lists all locks that are held around the command; to ask for one of them again is wrong usage. That is found out
only if the store is called by the same name: of redis://localhost within redis://127.0.0.1 the inner run waits for the outer.

No --wait outlasts a store that gives no answer: the waiting ends, with exit code 69, when it has been silent for 10 s, or for the
TTL if that is less.

--json FILE appends a line of JSON for each event, and a last one, of the event "outcome", with the exit code and the outcome
in a word: exited (by itself), killed (by a signal), lost (the lock), not acquired, interrupted (while it waited), cannot run,
unavailable (the store) or usage. fd:N is a descriptor.

Exit codes: the command's own; 128+n if it died of signal n, or if signal n ended the waiting (of SIGHUP, SIGINT, SIGQUIT and
SIGTERM this program then dies itself, so that a shell ends its loop at Ctrl-C); 64 wrong usage; 69 the store
cannot be reached or refuses; 75 not acquired; 76 the lock was lost while the command ran, even if that succeeded (if
the store gives no answer at the end, the code is the command's, and stderr says so);
126 the command cannot be run; 127 there is no such command.`

// runFlags are what is given before NAME.
type runFlags struct {
	lockFlags
	signal string
	grace  time.Duration
	json   string
}

func newRun(storeURL *string) *cobra.Command {
	f := runFlags{lockFlags: lockFlags{store: storeURL}}
	c := &cobra.Command{
		Use:     "run [flags] NAME [--] COMMAND [ARGUMENT...]",
		Short:   "Run a command under a lock",
		Long:    runHelp,
		Example: "  holdfast run nightly ./report.sh --full\n  holdfast run -n --skip-ok sync -- rsync -a /src/ /dst/",
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError("the lock's NAME is missing")
			}
			return withRecord(f.json, args[0], func(r *runRecord) error {
				job, err := f.newJob(c, args)
				if err != nil {
					return err
				}
				return job.runCommand(r)
			})
		},
		DisableFlagsInUseLine: true,
	}
	c.Flags().SetInterspersed(false) // what follows NAME is the command's
	f.addRunFlags(c)
	addRecordFlag(c, &f.json)
	return c
}

func (f *runFlags) addRunFlags(c *cobra.Command) {
	f.addFlags(c)
	f.addHoldFlags(c)
	c.Flags().StringVar(&f.signal, "signal", "TERM", "what tells the command to end when the lock is about to be lost")
	c.Flags().DurationVar(&f.grace, "grace", 0, "how long before SIGKILL (default a sixth of the TTL, 5s at most)")
}

// newJob makes a job of the command line. It finds the command before the lock is taken: a typing error must not wait an
// hour to be told.
func (f *runFlags) newJob(c *cobra.Command, args []string) (*job, error) {
	argv := args[1:]
	if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	}
	command := ""
	if len(argv) > 0 {
		command = argv[0]
	}
	request, err := f.newRequest(c, args[0], commandNote(command))
	if err != nil {
		return nil, err
	}
	how, err := f.killPolicy(c)
	switch {
	case err != nil:
		return nil, err
	case len(argv) == 0:
		return nil, usageError("the COMMAND to run under %s is missing", quoteName(args[0]))
	}
	path, err := findCommand(argv[0])
	if err != nil {
		return nil, err
	}
	return &job{path: path, argv: argv, store: *f.store, policy: how, request: request}, nil
}

// killPolicy are how the command is ended. The grace must leave a renewal the time to be late: one that is due after a third of
// the TTL and takes a moment must not end the command.
func (f *runFlags) killPolicy(c *cobra.Command) (killPolicy, error) {
	sig, err := parseSignal(f.signal)
	if err != nil {
		return killPolicy{}, err
	}
	most := f.ttl - f.ttl/3 - f.ttl/20 - driver.Margin(f.ttl)
	if f.maxHold > 0 {
		most = min(most, f.maxHold/2)
	}
	grace := min(maxDefaultGrace, f.ttl/6, most)
	if c.Flags().Changed("grace") {
		grace = f.grace
	}
	switch {
	case grace < 0:
		return killPolicy{}, usageError("--grace cannot be negative")
	case grace > most && f.maxHold > 0 && most == f.maxHold/2:
		return killPolicy{}, usageError("--grace %v does not fit: with --max-hold %v it can be %v at most", grace, f.maxHold, most)
	case grace > most:
		return killPolicy{}, usageError("--grace %v does not fit: with a TTL of %v it can be %v at most", grace, f.ttl, most.Truncate(time.Millisecond))
	}
	return killPolicy{Signal: sig, Grace: grace, CheckInterval: min(f.ttl/10, time.Second)}, nil
}

// findCommand finds the command as a shell would.
func findCommand(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		return path, nil
	case strings.HasPrefix(name, "-") && errors.Is(err, exec.ErrNotFound):
		return "", cannotRun(exitNotFound, "there is no command %s; flags of run come before NAME", quoteName(name))
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		return "", cannotRun(exitNotFound, "there is no command %s", quoteName(name))
	case errors.Is(err, exec.ErrDot):
		return "", cannotRun(exitNotFound, "%s is only in the current directory; write ./%s", quoteName(name), name)
	}
	return "", cannotRun(exitCannotRun, "%s cannot be run: %s", quoteName(name), rootCause(err))
}

func cannotRun(code int, format string, args ...any) error {
	exit := exitWith(code, format, args...)
	exit.outcome = outcomeCannotRun
	return exit
}

// rootCause is an error of the system without what was tried on what, which our own line says.
func rootCause(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

// commandNote is what others see beside the owner: the command, without its arguments, which may be secret.
func commandNote(command string) string {
	name := strings.ReplaceAll(strings.ToValidUTF8(filepath.Base(command), "?"), "\x00", "?")
	return name[:min(len(name), 255)]
}

// job is one command to be run under one lock.
type job struct {
	path    string
	argv    []string
	store   string
	policy  killPolicy
	request *lockRequest
}

func (j *job) runCommand(r *runRecord) error {
	signals := catchSignals()
	client, lease, err := j.request.acquireUntilSignal(j.store, signals, r)
	if err != nil {
		if client != nil {
			closeClient(client)
		}
		return err
	}
	k := &wrapper{lease: lease, clock: client.Info().Clock, ttl: j.request.opts.TTL, policy: j.policy, signals: signals, record: r}
	err = k.startGuard(j.request.store, j.request.opts.MaxHold, j.path, j.argv, j.request.commandEnvironment(os.Environ(), client, lease))
	if err != nil {
		k.result.startError = fmt.Errorf("start the guard: %w", err)
	} else {
		k.run()
	}
	if len(k.result.escaped) > 0 {
		// The lock was lost and what is left cannot be ended. Nothing is given back: the guard stays with it.
		r.addFields(fields{"escaped": k.result.escaped})
		return k.result.exitError(j.argv[0], k.result.loss)
	}
	lost := j.request.releaseLease(lease, k.result.loss != nil, r)
	k.closeGuard()
	closeClient(client)
	return k.result.exitError(j.argv[0], lost)
}

// exitError is what the end of the command, and of the lease, make of this program's.
func (e *runResult) exitError(command string, lost error) error {
	switch {
	case e.loss != nil:
		return &exitError{code: exitLost, outcome: outcomeLost, reason: lossText(e.loss)}
	case lost != nil:
		return &exitError{code: exitLost, outcome: outcomeLost, reason: lossText(lost)}
	case e.startError != nil && e.earlySignal != 0:
		return &exitError{code: exitSignal + int(e.earlySignal), outcome: outcomeInterrupted}
	case e.startError != nil:
		return startFailure(command, e.startError)
	}
	return commandExitError(e.status)
}

func startFailure(name string, err error) error {
	code := exitCannotRun
	if errors.Is(err, os.ErrNotExist) { // it went away, or its interpreter is not there
		code = exitNotFound
	}
	return cannotRun(code, "%s cannot be run: %s", quoteName(name), rootCause(err))
}
