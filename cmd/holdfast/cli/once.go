package cli

import (
	"cmp"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
)

// defaultStartWithin is how late a slot of --schedule may be run for the first time if --start-within is not given:
// such a slot starts when the job is to run. A slot of --every is a period, in which the job may be started at any
// time.
const defaultStartWithin = 10 * time.Minute

// onceFlags are the flags of once, which come before KEY.
type onceFlags struct {
	ledgerFlags
	endFlags
	progressFlags
	messageFlags
	storeWaitFlag
	ttl          time.Duration
	wait         waitLimit
	every        time.Duration
	schedule, tz string
	startWithin  time.Duration
	catchUp      bool
	allowOverlap bool
	doneCode     int
	attempts     int
	pause        time.Duration
	fingerprint  string
	keepFor      time.Duration
	keepOutput   byteSize
	labels       claimLabels
	events       string
	metricsFile  string
}

func newOnce(storeURL *string) *cobra.Command {
	f := onceFlags{ledgerFlags: ledgerFlags{store: storeURL}}
	c := &cobra.Command{
		Use:     "once [flags] KEY [--] COMMAND [ARGUMENT...]",
		Short:   "Run a command unless it has succeeded before, for a message or a time slot",
		Long:    onceHelp,
		Example: onceExamples,
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError("the KEY is missing")
			}
			return withEventFile(f.events, fields{"key": args[0]}, func(r *eventFile) error {
				return withTelemetry(f.metricsFile, "once", args[0], func(t *telemetry) error {
					job, err := f.newJob(c, args)
					if err != nil {
						return err
					}
					job.telemetry = t
					return f.silenceSkip(job.runCommand(r))
				})
			})
		},
		DisableFlagsInUseLine: true,
	}
	groupFlags(c, onceFlagGroups, onceAfterFlags)
	c.Flags().SetInterspersed(false) // arguments after KEY belong to the command
	f.addFlags(c)
	f.addSlotFlags(c)
	f.addEndFlags(c, "run")
	f.addProgressFlags(c)
	f.labels.addFlags(c)
	f.addMessageFlags(c)
	f.addStoreWaitFlag(c)
	addEventsFlag(c, &f.events)
	addMetricsFlag(c, &f.metricsFile)
	return c
}

// addFlags adds the flags of a run.
func (f *onceFlags) addFlags(c *cobra.Command) {
	f.ledgerFlags.addFlags(c)
	flags := c.Flags()
	flags.DurationVar(&f.ttl, "ttl", holdfast.DefaultTTL,
		"how long the run stays in progress if this program stops renewing it, 1s to 24h")
	flags.Var(&f.wait, "wait", "wait while a run is in progress: as long as it takes, or at most a `duration`")
	flags.Lookup("wait").NoOptDefVal = "forever"
	flags.Lookup("wait").DefValue = ""
	flags.IntVar(&f.doneCode, "done-code", 0, "exit `CODE`, 0 to 255, if KEY has succeeded before")
	flags.IntVar(&f.attempts, "attempts", 0, "run KEY at most `N` times (default: until it succeeds)")
	flags.DurationVar(&f.pause, "pause", 0, "least time between the end of a run and the start of the next")
	flags.Var(nonEmptyString{&f.fingerprint}, "fingerprint",
		"`TEXT` that describes the payload, such as a hash: the same KEY with another one is refused")
	flags.DurationVar(&f.keepFor, "keep-for", 0,
		"how long KEY is remembered after its last run; then it can be run again (default: forever)")
	flags.Var(&f.keepOutput, "keep-output",
		"store the end of the command's output with the run, at most `SIZE` bytes, such as 4k; 64k at most")
}

// addSlotFlags adds the flags that make a run per slot of time.
func (f *onceFlags) addSlotFlags(c *cobra.Command) {
	flags := c.Flags()
	flags.DurationVar(&f.every, "every", 0, "run KEY once per slot of this length, counted from 1970-01-01 in UTC")
	flags.Var(nonEmptyString{&f.schedule}, "schedule",
		"run KEY once per slot; each starts at a time of this `CRON` expression, such as '0 3 * * *'")
	flags.Var(nonEmptyString{&f.tz}, "tz", "time `ZONE` of --schedule, such as Asia/Tokyo, or UTC")
	flags.DurationVar(&f.startWithin, "start-within", 0,
		"how late a slot may be run for the first time, half of it at most (default 10m; with --every no limit)")
	flags.BoolVar(&f.catchUp, "catch-up", false, "with --schedule: run the current slot however long ago it started")
	flags.BoolVar(&f.allowOverlap, "allow-overlap", false, "run a slot while another slot of KEY is still run")
}

// check reports flags that make no sense, or none together.
func (f *onceFlags) check(c *cobra.Command, key string) error {
	changed := c.Flags().Changed
	_, notDuration := time.ParseDuration(key)
	switch {
	case len(strings.Fields(f.schedule)) == 1 && !strings.HasPrefix(f.schedule, "@"):
		return usageError("--schedule has one field of five; put the whole schedule in quotes, such as '0 3 * * *', and " +
			"flags before KEY")
	case changed("every") && changed("schedule"):
		return usageError("--every and --schedule exclude each other")
	case changed("schedule") && !changed("tz"):
		return usageError("--schedule needs --tz, the time zone, such as Asia/Tokyo or UTC")
	case changed("tz") && !changed("schedule"):
		return usageError("--tz needs --schedule")
	case changed("every") && f.every < time.Second:
		return usageError("--every must be 1s or more")
	case changed("start-within") && !changed("every") && !changed("schedule"):
		return usageError("--start-within needs --every or --schedule")
	case changed("start-within") && f.catchUp:
		return usageError("--start-within and --catch-up exclude each other")
	case f.catchUp && changed("every"):
		return usageError("--catch-up is for --schedule; with --every a slot can be run until it ends")
	case f.catchUp && !changed("schedule"):
		return usageError("--catch-up needs --schedule")
	case f.allowOverlap && !changed("every") && !changed("schedule"):
		return usageError("--allow-overlap needs --every or --schedule; without them, KEY has no slots that could overlap")
	case changed("start-within") && f.startWithin <= 0:
		return usageError("--start-within must be more than 0")
	case changed("wait") && !f.wait.limited && notDuration == nil:
		return usageError("write --wait=%s; as it is, %s is the KEY", key, key)
	case f.doneCode < 0 || f.doneCode > 255:
		return usageError("--done-code must be 0 to 255")
	case changed("attempts") && f.attempts < 1:
		return usageError("--attempts must be 1 or more")
	case f.pause < 0:
		return usageError("--pause cannot be negative")
	case changed("keep-for") && f.keepFor <= 0:
		return usageError("--keep-for must be more than 0; without it, KEY is remembered forever")
	case f.ttl < time.Second || f.ttl > 24*time.Hour:
		return usageError("--ttl must be 1s to 24h, not %v", f.ttl)
	}
	return nil
}

// newJob makes a job of the command line. Like run, it looks for the command first.
func (f *onceFlags) newJob(c *cobra.Command, args []string) (*onceJob, error) {
	if err := applyRunConfig(c); err != nil {
		return nil, err
	}
	if err := cmp.Or(f.check(c, args[0]), f.checkMessageFlags()); err != nil {
		return nil, err
	}
	j := &onceJob{
		key: args[0], argv: commandLine(args), store: *f.store, ledger: f.ledger,
		startWithin: f.startWithin, allowOverlap: f.allowOverlap, waitLimit: f.wait, waits: c.Flags().Changed("wait"),
		doneCode:    f.doneCode,
		fingerprint: f.fingerprint, keepOutput: int(f.keepOutput), labels: f.labels,
		progress: f.progressFlags, messages: f.messageFlags, storeWait: f.storeWaitLimit(c, f.wait),
		waitsForSlot: make(chan struct{}),
	}
	j.opts = holdfast.LedgerOptions{
		TTL: f.ttl, Meta: cmp.Or(f.labels.note, commandNote(j.argv)), MaxAttempts: f.attempts, Pause: f.pause, KeepFor: f.keepFor,
		Progress: f.progress,
	}
	var err error
	switch {
	case f.schedule != "":
		j.schedule, err = parseSchedule(f.schedule, f.tz)
		if !f.catchUp && f.startWithin == 0 {
			j.startWithin = defaultStartWithin
		}
	case f.every > 0:
		j.schedule = holdfast.Every(f.every)
	}
	if err == nil {
		err = f.checkProgressFlags(c)
	}
	if err == nil {
		j.policy, err = f.killPolicy(c, f.ttl, bound{"progress", f.progress})
	}
	if err == nil && len(j.argv) == 0 && c.ArgsLenAtDash() == 0 {
		err = usageError("the KEY is missing: it comes before --")
	}
	if err == nil && len(j.argv) == 0 {
		err = usageError("the COMMAND to run once for %s is missing", quoteName(j.key))
	}
	if err == nil {
		j.path, err = findCommand(j.argv, "KEY")
	}
	return j, err
}

// byteSize is the value of a flag such as 4k.
type byteSize int

func (s *byteSize) Type() string { return "size" }

func (s *byteSize) String() string {
	if *s == 0 {
		return ""
	}
	return strconv.Itoa(int(*s))
}

// Set parses a number of bytes, or of KiB with a k.
func (s *byteSize) Set(text string) error {
	digits, unit := text, 1
	if number, ok := strings.CutSuffix(strings.ToLower(text), "k"); ok {
		digits, unit = number, 1<<10
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 || n > holdfast.MaxRunResult/unit {
		return errors.New("give a number of bytes from 1 to 64k, such as 500 or 4k")
	}
	*s = byteSize(n * unit)
	return nil
}
