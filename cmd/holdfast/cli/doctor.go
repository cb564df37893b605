package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
	"github.com/holdfast-go/holdfast/driver"
)

// The exit codes of doctor, which are those that monitoring systems expect of a check.
const (
	exitWarning  = 1
	exitCritical = 2
	exitUnknown  = 3
)

// doctorTimeout bounds an examination. A claim of the probe is released or given up before it ends.
const doctorTimeout = time.Minute

func newDoctor(storeURL *string) *cobra.Command {
	d := doctor{store: storeURL}
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Find settings of the store that make its locks less safe",
		Long:  doctorHelp,
		Args:  exactArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			if d.ttl < time.Second || d.ttl > 24*time.Hour || d.ttl%time.Millisecond != 0 {
				return usageError("--ttl must be 1s to 24h in whole milliseconds, not %v", d.ttl)
			}
			return d.run(c.OutOrStdout())
		},
	}
	c.Flags().BoolVar(&d.quick, "quick", false, "do not measure")
	addJSONFlag(c, &d.asJSON)
	c.Flags().DurationVar(&d.ttl, "ttl", holdfast.DefaultTTL, "the TTL of your locks, which decides how slow the store may be")
	return c
}

const doctorHelp = `doctor examines the store: it looks for settings that make locks less safe, tries each step of a lock under a name of its
own (holdfast-doctor-...), and measures how long the steps take and how far the store's clock is from this machine's.
For each finding it says what it is, why it matters for locks, and which setting to change. docs/doctor.md lists them
all, and the permissions that doctor needs. It also says what it may not see.

It changes no setting and no lock, and it leaves nothing behind. It may be run on a store in use. create=true in the
store's URL is ignored.

On a terminal the severity of a finding has a color, unless NO_COLOR is set. With --json it prints one record of the
type "diagnosis".

Exit codes:
  0   nothing was found
  1   a warning: locks are at risk when something fails
  2   critical: locks are at risk although nothing has failed, or do not work
  3   unknown: something could not be seen, and nothing else was found
  64  wrong usage
  69  the store cannot be reached, or refuses`

// doctor is one run of the subcommand.
type doctor struct {
	store  *string
	ttl    time.Duration
	quick  bool
	asJSON bool
}

// diagnosis is what doctor prints.
type diagnosis struct {
	store    string
	severity driver.Severity // the worst of all findings; empty if there are none
	found    []driver.Finding
	probe    []string // the steps that were right
	measured *measurements
}

// json is the diagnosis for programs.
func (r *diagnosis) json() fields {
	f := fields{"store": r.store, "severity": cmp.Or(r.severity, "none"), "findings": shown.NewFindings(r.found),
		"probe": r.probe}
	if r.measured != nil {
		f["measured"] = r.measured.json()
	}
	return f
}

// run examines the store with two clients, as two machines would use it, and prints what it finds. It changes no
// lock of others.
func (d *doctor) run(w io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), doctorTimeout)
	defer cancel()
	choice, err := resolveStore(*d.store)
	if err != nil {
		return err
	}
	// Two clients of their own, which contend as those of two machines do.
	var stores [2]driver.Store
	for i := range stores {
		store, err := openURL(ctx, withoutCreate(choice.url))
		if err != nil && withoutCreate(choice.url) != choice.url && isMissing(err) {
			return usageError("there is nothing to examine yet: doctor makes nothing, so it leaves out create=true, which is in the " +
				"URL; holdfast list makes what is missing")
		} else if err != nil {
			return err
		}
		client, err := newClient(store, nil)
		if err != nil {
			return err
		}
		defer closeClient(client)
		stores[i] = store
	}
	result := &diagnosis{store: stores[0].Info().Store, probe: []string{}}
	d.examine(ctx, stores[0], result)
	if !slices.ContainsFunc(result.found, func(f driver.Finding) bool { return f.Code == "file-no-store" }) {
		p := newProbe(stores, d.ttl)
		p.run(ctx)
		result.probe, result.found = p.done, append(result.found, p.found...)
		if !d.quick && len(p.found) == 0 {
			result.measured = p.measure(ctx)
			result.found = append(result.found, result.measured.findings()...)
		}
	}
	result.sortFindings()
	if d.asJSON {
		err = writeRecord(w, recordDiagnosis, result.json())
	} else {
		err = result.print(w)
	}
	if code := result.exitCode(); err == nil && code != 0 {
		return &exitError{code: code}
	}
	return err
}

// withoutCreate removes the option create from the URL of a store, because doctor changes nothing.
func withoutCreate(where string) string {
	u, err := url.Parse(where)
	if err != nil || !u.Query().Has("create") {
		return where
	}
	query := u.Query()
	query.Del("create")
	u.RawQuery = query.Encode()
	return u.String()
}

// isMissing reports whether the error of opening a store, or its ledger, says that it does not exist and how to make
// it.
func isMissing(err error) bool {
	text := err.Error()
	return strings.Contains(text, "there is no ") && strings.Contains(text, "create=true")
}

var findingUnseen = driver.Finding{Code: "settings-unseen", Severity: driver.SeverityUnknown,
	Fix: "give the user of the locks the permissions that docs/doctor.md names"}

// examine asks the store for findings about its settings.
func (d *doctor) examine(ctx context.Context, store driver.Store, result *diagnosis) {
	found, err := store.Examine(ctx)
	result.found = append(result.found, found...)
	if err != nil {
		result.found = append(result.found, findingUnseen.With("", "the settings cannot be seen: "+errorText(err)))
	}
}

// severityColors are the colors of the severities at a terminal.
var severityColors = map[driver.Severity]int{
	driver.SeverityCritical: colorRed, driver.SeverityWarning: colorYellow, driver.SeverityUnknown: colorYellow,
}

// sortFindings sorts the findings by severity, and sets the severity of the whole.
func (r *diagnosis) sortFindings() {
	shown.SortFindings(r.found)
	if len(r.found) > 0 {
		r.severity = r.found[0].Severity
	}
}

// exitCode follows the worst finding, so that a monitor needs to read no text.
func (r *diagnosis) exitCode() int {
	switch r.severity {
	case driver.SeverityCritical:
		return exitCritical
	case driver.SeverityWarning:
		return exitWarning
	case driver.SeverityUnknown:
		return exitUnknown
	}
	return 0
}

// print writes the diagnosis for people.
func (r *diagnosis) print(w io.Writer) error {
	rows := [][]string{{"store", printableText(r.store)}}
	if len(r.probe) > 0 {
		rows = append(rows, []string{"probe", describeSteps(r.probe)})
	}
	err := writeTable(w, append(rows, r.measured.rows()...))
	d := newDisplay(w)
	for _, f := range r.found {
		title := f.Code
		if f.Subject != "" {
			title += ", " + printableText(f.Subject)
		}
		rows := [][]string{{"  found:", printableText(f.What)}}
		if f.Why != "" {
			rows = append(rows, []string{"  why:", printableText(f.Why)})
		}
		if f.Fix != "" {
			rows = append(rows, []string{"  change:", printableText(f.Fix)})
		}
		_, titleErr := fmt.Fprintf(w, "\n%s: %s\n", d.paint(string(f.Severity), severityColors[f.Severity]), title)
		err = errors.Join(err, titleErr, writeTable(w, rows))
	}
	if len(r.found) == 0 {
		_, last := fmt.Fprint(w, "\nnothing was found\n")
		err = errors.Join(err, last)
	}
	return err
}
