package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
)

// flagGroup is a heading in the help of a subcommand, and the flags below it.
type flagGroup struct {
	title string
	names []string
}

// lockFlagGroups are the groups of the subcommands that acquire a lock. A flag that a subcommand does not have is
// left out.
var lockFlagGroups = []flagGroup{
	{"Which lock", []string{"store", "also", "shared", "limit", "permits"}},
	{"What others see", []string{"note", "owner"}},
	{"Waiting", []string{"wait", "no-wait", "store-wait", "fair", "newest-only", "conflict-exit-code", "skip-ok"}},
	{"Holding", []string{"ttl", "min-hold", "max-hold", "progress", "progress-file", "on-request"}},
	{"Ending the command when the lock is about to be lost", []string{"signal", "grace"}},
	{"Messages", []string{"quiet", "verbose"}},
	{"Other", []string{"events", "json", "metrics-file", "help"}},
}

// onceFlagGroups are the groups of once.
var onceFlagGroups = []flagGroup{
	{"Which runs", []string{"store", "ledger", "fingerprint"}},
	{"What others see", []string{"note", "owner"}},
	{"Once per time slot", []string{"every", "schedule", "tz", "start-within", "catch-up", "allow-overlap"}},
	{"When a run may begin", []string{"wait", "store-wait", "attempts", "pause", "done-code"}},
	{"Running", []string{"ttl", "progress", "progress-file", "keep-output", "keep-for"}},
	{"Ending the command when the run is about to be lost", []string{"signal", "grace"}},
	{"Messages", []string{"quiet", "verbose"}},
	{"Other", []string{"events", "json", "metrics-file", "help"}},
}

// groupFlags makes the help of a subcommand show its flags in groups, and text after them.
func groupFlags(c *cobra.Command, groups []flagGroup, text string) {
	c.SetUsageFunc(func(c *cobra.Command) error {
		w := c.OutOrStderr()
		fmt.Fprintf(w, "Usage:\n  %s\n", c.UseLine())
		if c.Example != "" {
			fmt.Fprintf(w, "\nExamples:\n%s\n", c.Example)
		}
		for _, g := range groups {
			if flags := g.usages(c); flags != "" {
				fmt.Fprintf(w, "\n%s:\n%s", g.title, flags)
			}
		}
		if text != "" {
			fmt.Fprintf(w, "\n%s\n", strings.TrimSpace(text))
		}
		return nil
	})
}

// usages describes the flags of a group, one per line.
func (g flagGroup) usages(c *cobra.Command) string {
	set := pflag.NewFlagSet(g.title, pflag.ContinueOnError)
	set.SortFlags = false
	add := func(f *pflag.Flag) {
		if slices.Contains(g.names, f.Name) && set.Lookup(f.Name) == nil {
			set.AddFlag(f)
		}
	}
	for _, name := range g.names { // in the order of the group
		if f := c.Flags().Lookup(name); f != nil {
			add(f)
		} else if f := c.InheritedFlags().Lookup(name); f != nil {
			add(f)
		}
	}
	return set.FlagUsages()
}

// newRunDetails is a topic of the help: what most readers of "run --help" do not need.
func newRunDetails() *cobra.Command {
	return &cobra.Command{
		Use:   "run-details",
		Short: "How run ends the command, forwards signals, and records the outcome",
		Long:  runDetailsHelp,
	}
}

const rootHelp = `holdfast runs commands under a lock that processes, containers and machines agree on, and shows who holds which lock.

    holdfast run nightly-report ./report.sh --full

runs ./report.sh while no other "holdfast run nightly-report" on the same store does.

    holdfast once order-4711 ./ship.sh 4711

runs ./ship.sh unless it has succeeded for order-4711 before, on any machine with the same store.

Locks are kept in a store, given by --store, by the environment variable HOLDFAST_STORE, or by a configuration file (see
"holdfast help configuration"). Without any, the store is a directory: your own, or /var/lib/holdfast if you are root
("holdfast stores" shows which). It needs no server, and its locks work between the processes of this machine. cron does
not read the files of your shell, so a variable that is set there is not set for its jobs: use a configuration file.

Put a URL that contains a password into HOLDFAST_STORE: everybody on the machine can read command lines. The command that
run starts, and everything started by it, inherits HOLDFAST_STORE. With password-file=FILE in the URL (for stores that
have passwords) it inherits only the name of a file.

Every subcommand that prints something has --json, for scripts; acquire always prints JSON. docs/json.md and
docs/json-schema.json describe the records.

Exit codes of all subcommands (run, break and others have more, listed in their help):
  64     wrong usage
  69     the store cannot be reached, or refuses
  74     the output cannot be written
  128+n  ended by signal n`

const runHelp = `run acquires the lock NAME, runs COMMAND, and releases the lock when COMMAND and everything it started have ended.

If the lock is lost, run ends COMMAND and everything it started before anybody else can hold the lock, and exits 76.`

const runExamples = `  holdfast run nightly ./report.sh --full                  wait for the lock as long as it takes
  holdfast run --wait 10m nightly ./report.sh              wait for at most 10 minutes
  holdfast run -n --skip-ok sync -- rsync -a /src/ /dst/   do not wait; exit 0 if somebody else holds the lock
  holdfast run --limit 3 reports ./report.sh               up to three at once
  holdfast run --shared config ./read-config               together with other --shared runs
  holdfast run --also db --also cache deploy ./deploy.sh   under three locks: all or none`

const runAfterFlags = `Flags of run come before NAME. COMMAND is run directly, without a shell, with the input and output of run. It finds the
name of the lock, its fencing token and the id of its claim in HOLDFAST_LOCK, HOLDFAST_TOKEN and HOLDFAST_ID, with
--also the tokens of all locks in HOLDFAST_TOKENS, and with --limit the number of its permit in HOLDFAST_PERMIT.

In cron, the same lines on many machines run COMMAND on one of them:
  PATH=/usr/local/bin:/usr/bin:/bin
  0 3 * * *  holdfast run -n --skip-ok -q --min-hold 10m nightly -- ./report.sh
--min-hold keeps the lock for longer than the machines' clocks differ. Without it, a machine whose clock is behind finds
the lock free again when the job is done, and runs it a second time. With -q a skipped run prints nothing, so cron sends
no mail. Cron does not read the profile of your shell, and does not look for programs in /usr/local/bin by itself: set
PATH and HOLDFAST_STORE in the crontab. "holdfast once --schedule" runs COMMAND once per time slot, whatever the clocks
show.

Exit codes: that of COMMAND, or
  64       wrong usage
  69       the store cannot be reached, or refuses. A store that cannot be reached at the start is retried for
           --store-wait. Later, any wait, even --wait forever, ends with 69 if the store is unreachable for 10s or one
           TTL, whichever is shorter
  75       the lock was not acquired (-E sets another code)
  76       the lock was lost while COMMAND ran, even if COMMAND succeeded
  79       COMMAND was ended because somebody asked for the lock (--on-request release), whatever its own exit code
  81       a newer caller waits for the lock (--newest-only)
  126      COMMAND cannot be run
  127      there is no such COMMAND
  128+n    COMMAND died of signal n, or signal n ended the wait

"holdfast help run-details" explains which processes are ended and when, how signals are forwarded, runs inside runs,
messages, stores that are down, requests for the lock, and the file of --events.`

const runDetailsHelp = `Details of holdfast run.

Which lock
  Without --shared and --limit, a run of NAME excludes every other run of NAME on the same store.
  With --shared, runs of NAME hold it together, and exclude runs without --shared, as flock -s and flock -x do. A shared
  run that finds NAME held by a plain run checks again from time to time; it is not in the queue with others.
  With --limit N, up to N runs hold NAME at once; with --permits K this run counts as K. All runs of NAME must give the
  same N. HOLDFAST_PERMIT has a number from 0 to N-1, which no other run of NAME has at the same time; with --permits K,
  up to 64, it has K numbers, separated by commas. It is not set on etcd, ZooKeeper and Consul, nor next to a run of an
  earlier version of Holdfast.

Several locks
  With --also, run holds all locks or none. It acquires them one after the other, in the order of their names, so runs
  with --also never wait for each other forever. The locks of --also are held alone, as a plain run holds NAME;
  --shared, --limit and --permits do not go with it. All other flags are for all locks: --wait bounds the wait as a
  whole, and -n acquires none if one is held. If one lock is lost, COMMAND is ended as if NAME were; the message names
  the lock. A request to release one of them counts for all. HOLDFAST_TOKENS has NAME=TOKEN of each lock, separated by
  blanks; special characters in NAME are written as %XX.

When the command hangs
  With --progress 5m the command must say that it gets on: it writes anything to the descriptor HOLDFAST_PROGRESS_FD,
  in a shell by "echo >/dev/fd/$HOLDFAST_PROGRESS_FD", or changes the file of --progress-file. If it does neither for
  5 minutes, the lock is lost: the command and all its descendants are sent --signal --grace before that, and killed.

When the lock is lost
  If the lock cannot be renewed, the command and all its descendants are sent --signal, --grace before anybody else
  could hold the lock. What is left after the grace is killed, before that moment, even if a renewal succeeds meanwhile.
  They are also ended if an operator breaks the lock, or if it is gone from the store: with the grace if the lock stays
  held until its TTL has passed, and at once if somebody else may have it.
  A process of its own does that, the guard. It does so even if holdfast run itself is stopped, killed, or hung.

Which processes are ended
` + guard.DescendantsHelp + `
  Work that another program does on behalf of the command is neither ended nor waited for: docker run, ssh, kubectl
  exec, systemctl start and at only ask for it. Take the lock where the work is done: ssh HOST holdfast run NAME COMMAND

Signals
  A signal sent to holdfast run is forwarded to the command. A signal sent to the whole process group, as the terminal
  does, reaches the command directly and is not forwarded. (On Linux. In the first 50 ms of the command, on other
  systems, and on a very busy machine, the command may receive such a signal twice. In a systemd unit set
  KillMode=mixed, unless holdfast run is the program of ExecStart=.)
  A second Ctrl-C at the terminal, 0.2s to 5s after the first, kills the command and all its descendants.
  Ctrl-Z stops the command and holdfast run. After fg both continue if the lock is still held. It stays held for less
  than one TTL.
  SIGHUP and SIGINT that are ignored when holdfast run starts, as under nohup, are ignored in the command too. Other
  ignored signals are not; the command itself must ignore them:
      holdfast run NAME sh -c 'trap "" TERM; exec "$0" "$@"' COMMAND...

When somebody asks for the lock
  "holdfast request-release NAME" asks the holder to release the lock. run learns of it at its next renewal, after at
  most a third of the TTL, and says so on stderr. --on-request says what it does then, once per run:
  ignore   nothing; this is the default.
  release  it ends the command and all its descendants, as after a loss: with --signal, and SIGKILL for what is left
           after --grace. Then it releases the lock and exits 79. The lock stays held, and is renewed, until all have
           ended; --min-hold still applies. If it is lost meanwhile, the exit code is 76. If only descendants of the
           command are left, they are ended, and the exit code is that of the command.
  SCRIPT   anything else is a script for sh, which runs next to the command, with the same environment and output, and
           no input. HOLDFAST_COMMAND_PID is the process id of the command: 'kill -USR1 $HOLDFAST_COMMAND_PID'. The
           script counts as a part of the command: it is ended if the lock is lost, and the lock is kept until it has
           ended. Its exit code does not matter.

Runs inside runs
  HOLDFAST_HELD lists the locks that are held around the command. A run, hold or acquire of one of them inside the
  command is refused as wrong usage (exit 64), because it would wait for itself. It does not matter how the store is
  named: a claim is found by its ref and its token.

Messages
  Messages are lines on stderr that begin with "holdfast: ". If stderr is not a terminal, the time comes before that. A
  wait is mentioned after 1s, 1m, 2m, 4m and so on, at last each hour; at a terminal, and with --verbose, after 0.3s and
  when the holder changes.
  --quiet prints only errors and losses: nothing about waits, about requests to release the lock, and if the lock is not
  acquired (exit 75, or 0 with --skip-ok). --verbose also prints the token, how long the wait took, each renewal that
  failed, and the release.

A store that is down
  At the start, a store that cannot be reached is tried again for --store-wait, 10s unless given, with one message. 0
  means one attempt. --wait 10m is for the lock and the store together, so it bounds --store-wait, and is its default.
  Wrong credentials and mistakes in the URL are reported at once. A host name that is not found is tried again: name
  servers learn of new hosts late.

The file of --events
  --events FILE appends one line of JSON per event. The last line has the event "outcome", the exit code, and the
  outcome: exited (on its own), killed (by a signal), lost (the lock), not-acquired, interrupted (while it waited),
  cannot-run, released-on-request, unavailable (the store), or usage. fd:N instead of FILE is a file descriptor.
  docs/json.md explains all events and codes.

Metrics
  --metrics-file FILE.prom adds to the counters in the file, which the textfile collector of node_exporter reads, and
  notes there when this program last started, acquired the lock, released it, succeeded and ended, and its exit code.
  Programs can share a file.
  With OTEL_EXPORTER_OTLP_ENDPOINT, metrics and traces are exported by OTLP (http/protobuf). The command finds its
  parent span in TRACEPARENT, and so does this program.
  What cannot be written or exported changes neither the lock nor the exit code. docs/metrics.md has the details.

Exit codes
  If SIGHUP, SIGINT, SIGQUIT or SIGTERM killed the command or ended the wait, holdfast run dies of the same signal, so
  that a shell ends its loop at Ctrl-C.
  If the store cannot be reached when the lock is to be released, the exit code is that of the command, and a message on
  stderr says so.`

const onceHelp = `once runs COMMAND for KEY unless a run of KEY has succeeded before. KEY is the id of a message that may be delivered more
than once, or the name of a job that is to run once per time slot.

A run that exits with 0 has succeeded: KEY is then never run again, on any machine that uses the same store. After any
other exit KEY can be run again. If holdfast once is killed, or its machine fails, COMMAND and everything it started are
ended as by "holdfast run", the run is abandoned, and KEY can be run again. So work that COMMAND has finished just before
is done again.

With --every or --schedule, KEY becomes KEY@SLOT, where SLOT is when the current slot started, by the clock of the store:
the same crontab line on many machines runs COMMAND once per slot, whatever their clocks show. once does not start by
itself when a slot starts: let cron, or a timer of systemd, start it on each machine.`

const onceExamples = `  holdfast once order-4711 ./ship.sh 4711                          again only if it failed
  holdfast once --schedule '0 3 * * *' --tz Asia/Tokyo nightly -- ./report.sh
  holdfast once --every 1h --attempts 3 --pause 1m sync ./sync.sh  at most three attempts per hour
  holdfast once --keep-output 4k --fingerprint "$(sha256sum <order)" order-4711 ./ship.sh order`

const onceAfterFlags = `Flags of once come before KEY. COMMAND is run directly, without a shell. It finds its key (with the slot), the start of
the slot, the number of the attempt, the run's fencing token and its id in HOLDFAST_KEY, HOLDFAST_SLOT, HOLDFAST_ATTEMPT,
HOLDFAST_TOKEN and HOLDFAST_ID. "holdfast ledger" shows what has become of the keys.

Time slots
  once waits for the next slot if that starts within a minute, and in short slots within a tenth of a slot: the clock of
  the machine may be ahead.
  With --every, KEY is run when once is first started in a slot, and again in the slot only if that has failed.
  With --schedule, a slot whose first run did not begin within --start-within of its start is missed: once says so, and
  exits 0. More than half of the slot counts as half of it, and the message says that. With --catch-up it runs the
  slot that started last, however long ago. Slots before that one are not run.
  A slot whose predecessor is still run waits for its end. If that does not come while the slot may be begun (until the
  slot ends, or until --start-within has passed), the slot is missed, and once exits 80. All lines of a job must agree on
  --allow-overlap: a run with it may overlap with others.
  CRON is five fields as in crontab(5), or a name such as @daily. On days on which the clocks change, a time that does not
  exist counts as the moment of the change, and a time that is repeated counts once. If the field of the hour is * or */N,
  the job runs at each moment at which the clock shows such a time.
  --keep-for must be longer than a slot; without it, each slot is remembered forever.

--keep-output stores the end of the output of a run that succeeds as its result; of a run that fails, the error has the
end of it. COMMAND then writes to pipes, and not to a terminal.

Exit codes: that of COMMAND, or
  0        KEY has succeeded before (--done-code sets another code), or its slot was missed; a message says so
  64       wrong usage, another --fingerprint, or a store that keeps no runs
  69       the store cannot be reached, or refuses; COMMAND was not run
  73       COMMAND has succeeded, but the store has not confirmed that this is recorded: KEY may be run again
  75       a run of KEY is in progress and has not ended within --wait, or the --pause has not passed
  76       the run was lost while COMMAND ran, even if COMMAND succeeded
  77       all --attempts are used; "holdfast ledger retry" allows one more
  80       the slot was missed, because another slot of KEY was run for too long
  126      COMMAND cannot be run
  127      there is no such COMMAND
  128+n    COMMAND died of signal n, or signal n ended the wait

The guard, signals, messages, --store-wait and --events work as for run: see "holdfast help run-details".
--quiet also prints nothing if KEY has succeeded before. It does not hide that a slot was missed: nobody has run it.
More outcomes in the file of --events are:
done-before, missed, attempts-used, not-recorded (73).`

const holdHelp = `hold acquires the lock NAME, prints its fencing token on a line of its own, and holds the lock until it receives SIGINT
(Ctrl-C), SIGTERM, SIGHUP or another signal that would end a program. Then it releases the lock and exits 0.

It exits 76 as soon as the lock is lost, and with --on-request release 79 if somebody asks for the lock. If the lock is
not acquired, it exits as run does.`

const holdAfterFlags = `With --json the token is in a record of the type "hold". The outcome in the file of --events is one of run's (see
"holdfast help run-details"), or "released" if a signal ended hold, or "not-printed" if the token could not be printed.`

const acquireHelp = `acquire acquires the lock NAME, prints a handle, and leaves the lock held without a process. It stays held until its
--ttl has passed, unless renew or release is called with the handle, by this shell or by any other process.

    h=
    trap 'test -z "$h" || holdfast release "$h"' EXIT
    trap 'exit 1' HUP INT TERM
    h=$(holdfast acquire --ttl 10m deploy) || exit
    ./step-one && holdfast renew "$h" && ./step-two

If the handle is never released, or is thrown away, the lock expires after the TTL. Nothing watches over the work in
between: work that takes longer than the TTL continues without the lock. That is why --ttl has no default here: give the
longest time between two steps, or of the whole work. Use run where you can.

With --skip-ok, acquire exits 0 and prints nothing if the lock is not acquired. The handle is then empty, and release
accepts an empty handle. Test for it: [ -n "$h" ] || exit 0.

The handle is one line of JSON, with the lock's fencing token in "token". Anybody who has it can release the lock. renew
and release need the store that acquire used: give them the same --store or HOLDFAST_STORE.`
