package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Main runs the command line of this process, os.Args, and ends the process with the exit code that docs/exit-codes.md
// has for it, or by the signal that the command under the lock died of. It never returns. As process 1 of a container
// on Linux, it also reaps orphans until then, if main itself calls it.
//
// The stores are those that the program imports. The file store is the default one, so a program without it needs
// --store or HOLDFAST_STORE.
func Main() {
	exitOnQuit()
	var code int
	var signal syscall.Signal
	guard.ReapOrphansDuring(func() { code, signal = executeCommand(os.Args[1:]) })
	if signal != 0 {
		dieBySignal(signal)
	}
	os.Exit(code)
}

// executeCommand runs one command line. It returns the exit code, and the signal to die of instead, if any. By then
// it has printed what went wrong.
func executeCommand(args []string) (code int, signal syscall.Signal) {
	root := newRootFor(args)
	root.SetArgs(args)
	ran, err := root.ExecuteC()
	var exit *exitError
	switch {
	case err == nil:
		return 0, 0
	case errors.As(err, &exit):
	case errors.As(err, new(*fs.PathError)):
		exit = exitWith(exitOutputFailed, "the output cannot be written: %s", rootCause(err))
	default: // cobra's own
		exit = usageError("%s", err)
	}
	if exit.err != nil && !exit.silent {
		note, hint := "", ""
		if exit.concernsStore() {
			note = storeNote(errorText(exit.err))
		}
		if exit.code == exitUsage {
			note += configNote(ran, errorText(exit.err))
		}
		if exit.code == exitUsage && exit.hint {
			hint = fmt.Sprintf("; see %s --help", ran.CommandPath())
			if note == "" && strings.HasSuffix(errorText(exit.err), "?") {
				hint = fmt.Sprintf(" See %s --help", ran.CommandPath())
			}
		}
		printMessage("%s%s%s", errorText(exit.err), note, hint)
	}
	return exit.code, exit.fatalSignal()
}

// repeatedCommands are the subcommands that scripts run again and again.
var repeatedCommands = map[string]func(storeURL *string) *cobra.Command{
	"run": newRun, "once": newOnce, "hold": newHold, "acquire": newAcquire, "renew": newRenew, "release": newRelease,
}

// newRootFor builds the command line that args need. For a subcommand that is run again and again that is this one
// alone: to build the others, their help and their completion takes longer than to read its flags.
func newRootFor(args []string) *cobra.Command {
	if len(args) > 0 && repeatedCommands[args[0]] != nil {
		root, storeURL := newBareRoot()
		root.AddCommand(repeatedCommands[args[0]](storeURL))
		root.CompletionOptions.DisableDefaultCmd = true
		return root
	}
	return newRoot()
}

// newRoot builds the command line: the flags of the program and all subcommands.
func newRoot() *cobra.Command {
	root, storeURL := newBareRoot()
	root.AddCommand(newRun(storeURL), newOnce(storeURL), newHold(storeURL),
		newAcquire(storeURL), newRenew(storeURL), newRelease(storeURL),
		newList(storeURL), newShow(storeURL), newWatch(storeURL), newBreak(storeURL), newRequestRelease(storeURL),
		newToken(storeURL), newLedger(storeURL), newStores(storeURL), newExplain(storeURL),
		newDoctor(storeURL), newTorture(storeURL), newTortureWorker(), newServe(storeURL), newVersion(), newRunDetails(),
		newConfigurationHelp(), newMan())
	addCompletions(root, storeURL)
	root.InitDefaultHelpCmd()
	if c, _, err := root.Find([]string{"help"}); err == nil {
		c.RunE = showHelp // otherwise it exits 0 for what does not exist
	}
	root.InitDefaultCompletionCmd()
	if c, _, err := root.Find([]string{"completion"}); err == nil {
		// Otherwise it prints its help, which a script would source.
		c.RunE = func(*cobra.Command, []string) error {
			return usageError("give one shell: bash, fish, powershell or zsh")
		}
		c.Args = cobra.ArbitraryArgs
	}
	return root
}

// showHelp prints the help of a subcommand or a topic.
func showHelp(c *cobra.Command, args []string) error {
	about, rest, err := c.Root().Find(args)
	if err != nil || len(rest) > 0 && about.HasSubCommands() {
		return unknownCommand(about, rest[0])
	}
	about.InitDefaultHelpFlag()
	return about.Help()
}

// newBareRoot builds the program's own flags, without subcommands.
func newBareRoot() (root *cobra.Command, storeURL *string) {
	storeURL = new(string)
	var asksVersion bool
	root = &cobra.Command{
		Use:           "holdfast",
		Short:         "Run commands under a distributed lock",
		Long:          rootHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case asksVersion:
				return printVersion(c.OutOrStdout())
			case len(args) == 0:
				return usageError("a subcommand is missing")
			}
			return unknownCommand(c, args[0])
		},
		Args:                       cobra.ArbitraryArgs,
		SuggestionsMinimumDistance: 2,
	}
	root.PersistentFlags().Var(nonEmptyString{storeURL}, "store",
		"`URL` of the store, such as file:///var/lib/holdfast (see help configuration for the default)")
	root.Flags().BoolVar(&asksVersion, "version", false, "print the version")
	root.SetFlagErrorFunc(flagError)
	makeHelp := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) { printHelp(c, args, makeHelp) })
	return root, storeURL
}

// printHelp prints a help text. It ends the program if that fails, which cobra ignores.
func printHelp(c *cobra.Command, args []string, makeHelp func(*cobra.Command, []string)) {
	out, text := c.OutOrStdout(), bytes.Buffer{}
	c.SetOut(&text)
	makeHelp(c, args)
	if _, err := out.Write(text.Bytes()); err != nil {
		printMessage("the output cannot be written: %s", rootCause(err))
		os.Exit(exitOutputFailed)
	}
}

// exactArgs checks that all arguments are given, and no more. Extra arguments are not quoted, because one may be a
// URL with a password.
func exactArgs(all ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) < len(all):
			return usageError("the %s is missing", all[len(args)])
		case len(args) > len(all) && slices.Contains(all, "HANDLE") && strings.HasPrefix(args[0], "{"):
			return usageError("the handle was split at a blank: put it in quotes, as in %s \"$h\"", c.CommandPath())
		case len(args) > len(all):
			return usageError("too many arguments: %d instead of %d", len(args), len(all))
		}
		return nil
	}
}

// unknownCommand is the error for an unknown subcommand, with a suggestion if there is a similar one.
func unknownCommand(root *cobra.Command, name string) error {
	if strings.Contains(name, "://") { // a URL in the wrong place, maybe with a password
		return usageError("a URL is not a subcommand; give it with --store")
	}
	if like := root.SuggestionsFor(name); len(like) > 0 {
		return usageError("unknown subcommand %q; did you mean %s?", name, strings.Join(like, " or "))
	}
	return usageError("unknown subcommand %q", name)
}

// longFlag is the flag that was meant by letters after one dash, of which the first ones may be flags by themselves;
// empty if there is none.
func longFlag(c *cobra.Command, letters string) (long string) {
	letters, _, _ = strings.Cut(letters, "=")
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if len(letters) > 1 && strings.HasSuffix(f.Name, letters) {
			long = f.Name
		}
	})
	return long
}

// formatFlag is an unknown flag as it was written.
func formatFlag(missing *pflag.NotExistError) string {
	if missing.GetSpecifiedShortnames() != "" {
		return "-" + missing.GetSpecifiedName()
	}
	return "--" + missing.GetSpecifiedName()
}

// flagError describes what is wrong with a flag. The library's own texts quote what was typed, which may be a URL with
// a password after a mistyped flag.
func flagError(c *cobra.Command, err error) error {
	var missing *pflag.NotExistError
	var value *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &missing) && c.Flags().Lookup("wait") != nil &&
		slices.Contains([]string{"timeout", "w"}, missing.GetSpecifiedName()):
		return usageError("there is no flag %s; did you mean --wait?", missing.GetSpecifiedName())
	case errors.As(err, &missing) && c.Flags().Lookup("events") != nil && missing.GetSpecifiedName() == "json":
		return usageError("%s prints nothing itself; to have what happens in a file, use --events FILE", c.Name())
	case errors.As(err, &missing) && slices.Contains([]string{"run", "hold"}, c.Name()) &&
		slices.Contains([]string{"schedule", "every", "tz"}, missing.GetSpecifiedName()):
		return usageError("%s has no --%s; use: holdfast once --schedule '0 3 * * *' --tz ZONE KEY COMMAND, with the quotes",
			c.Name(), missing.GetSpecifiedName())
	case errors.As(err, &missing) && c.Name() == "once" &&
		slices.Contains([]string{"n", "no-wait", "skip-ok"}, missing.GetSpecifiedName()):
		return usageError("once has no %s: it waits only with --wait, exits 0 if KEY has succeeded before, and 75 while a run "+
			"of KEY is in progress", formatFlag(missing))
	case errors.As(err, &missing) && missing.GetSpecifiedShortnames() != "":
		if long := longFlag(c, missing.GetSpecifiedShortnames()); long != "" {
			return usageError("unknown flag -%s; did you mean --%s?", missing.GetSpecifiedName(), long)
		}
		return usageError("unknown flag -%s", missing.GetSpecifiedName())
	case errors.As(err, &missing):
		var known []string
		c.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		if like := driverutil.FindSimilar(missing.GetSpecifiedName(), known...); like != "" {
			return usageError("unknown flag --%s; did you mean --%s?", missing.GetSpecifiedName(), like)
		}
		return usageError("unknown flag --%s", missing.GetSpecifiedName())
	case errors.As(err, &value):
		return usageError("the flag --%s needs a value", value.GetFlag().Name)
	case errors.As(err, &invalid):
		return usageError("--%s: %q: %s", invalid.GetFlag().Name, invalid.GetValue(), flagErrorText(invalid.Unwrap()))
	}
	return usageError("a flag is malformed")
}
