package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// newMan is for those who package the command: it is not in the help.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write manual pages into a directory",
		Long:   "man writes a manual page of section 1 for holdfast and for each subcommand into DIR. The text is that of --help.",
		Hidden: true,
		Args:   exactArgs("DIR"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return exitWith(exitOutputFailed, "%s cannot be made: %s", quoteName(args[0]), rootCause(err))
			}
			return writeManPages(c.Root(), args[0])
		},
	}
}

// writeManPages writes the page of a command and those of its subcommands.
func writeManPages(c *cobra.Command, dir string) error {
	page := manName(c) + ".1"
	if err := os.WriteFile(filepath.Join(dir, page), []byte(manPage(c)), 0o644); err != nil {
		return exitWith(exitOutputFailed, "%s cannot be written: %s", quoteName(page), rootCause(err))
	}
	for _, sub := range c.Commands() {
		if sub.Hidden || sub.Name() == "help" || sub.Name() == "completion" {
			continue
		}
		if err := writeManPages(sub, dir); err != nil {
			return err
		}
	}
	return nil
}

// manName is the name of a page: holdfast-ledger-show.
func manName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// manPage is a manual page. The texts of the help are shown as they are, line by line: they are laid out for a
// terminal, and are not Markdown, which the generator of cobra expects.
func manPage(c *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %q 1 \"\" %q \"Holdfast\"\n", strings.ToUpper(manName(c)), "holdfast "+buildVersion())
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", escapeRoff(manName(c)), escapeRoff(c.Short))
	writeManSection(&b, "DESCRIPTION", c.Long)
	c.InitDefaultHelpFlag()
	writeManSection(&b, "USAGE", c.UsageString())
	if c.HasParent() {
		fmt.Fprintf(&b, ".SH SEE ALSO\n.BR %s (1)\n", escapeRoff(manName(c.Parent())))
	}
	return b.String()
}

// writeManSection writes a section whose lines are kept.
func writeManSection(b *strings.Builder, title, text string) {
	if text = strings.TrimSpace(text); text == "" {
		return
	}
	fmt.Fprintf(b, ".SH %s\n.nf\n", title)
	for line := range strings.Lines(text) {
		b.WriteString(escapeRoff(strings.TrimRight(line, "\n")) + "\n")
	}
	b.WriteString(".fi\n")
}

// escapeRoff makes roff print a line as it is: backslashes, minus signs, and control characters of requests.
func escapeRoff(line string) string {
	line = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(line)
	if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
		line = `\&` + line
	}
	return line
}
