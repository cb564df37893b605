package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/text"
)

func quoteName(s string) string     { return text.QuoteName(s) }
func printableText(s string) string { return text.Printable(s) }
func oneLine(s string) string       { return text.OneLine(s) }

// formatTime is a local time and its distance from now.
func formatTime(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.RFC3339) + " (" + formatRelative(time.Until(t)) + ")"
}

// formatRelative is a distance from now, such as "in 5s" or "2m10s ago".
func formatRelative(d time.Duration) string {
	switch {
	case d > -time.Second && d < time.Second:
		return "now"
	case d < 0:
		return formatDuration(-d) + " ago"
	}
	return "in " + formatDuration(d)
}

// formatDuration is a duration in its two largest units.
func formatDuration(d time.Duration) string { return shown.FormatDuration(d, "") }

// describeHolders names the first holders of a lock, for one line.
func describeHolders(claims []holdfast.ClaimInfo) string {
	if len(claims) == 0 {
		return "others"
	}
	const maxShown = 3
	var who []string
	for i, h := range claims {
		if i == maxShown {
			who = append(who, fmt.Sprintf("%d more", len(claims)-maxShown))
			break
		}
		s := printableText(h.Owner)
		if h.Meta != "" {
			s += " (" + printableText(h.Meta) + ")"
		}
		if !h.Since.IsZero() {
			s += " since " + formatTime(h.Since)
		}
		who = append(who, s)
	}
	return strings.Join(who, ", ")
}

// writeTable writes rows in aligned columns.
func writeTable(w io.Writer, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(tw, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	return tw.Flush()
}

// describeKind is the kind and limit of a lock in words.
func describeKind(l holdfast.Lock) string { return cmp.Or(shown.DescribeKind(l), "-") }
