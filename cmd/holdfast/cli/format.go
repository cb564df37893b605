package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/holdfast-go/holdfast"
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
func formatDuration(d time.Duration) string {
	d = d.Round(time.Second)
	const day = 24 * time.Hour
	switch {
	case d >= day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

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
func describeKind(l holdfast.Lock) string {
	switch l.Kind {
	case holdfast.KindRW:
		return "read-write lock"
	case holdfast.KindSemaphore:
		return fmt.Sprintf("semaphore of %d", l.Limit)
	case "":
		return "-"
	}
	return string(l.Kind)
}
