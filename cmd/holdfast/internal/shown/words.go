package shown

import (
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast"
)

// DescribeKind is the kind and limit of a lock in words, or empty if it is not known.
func DescribeKind(l holdfast.Lock) string {
	switch l.Kind {
	case holdfast.KindRW:
		return "read-write lock"
	case holdfast.KindSemaphore:
		return fmt.Sprintf("semaphore of %d", l.Limit)
	}
	return string(l.Kind)
}

// FormatDuration is a duration in its two largest units, with a separator between them.
func FormatDuration(d time.Duration, separator string) string {
	const day = 24 * time.Hour
	switch d = d.Round(time.Second); {
	case d >= day:
		return fmt.Sprintf("%dd%s%dh", d/day, separator, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%s%dm", d/time.Hour, separator, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%s%ds", d/time.Minute, separator, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

// FormatTook is how long a run took or has taken until now. The store's clock may be ahead of this machine's.
func FormatTook(run holdfast.RunInfo, now time.Time, separator string) string {
	end := run.EndedAt
	if end.IsZero() {
		end = now
	}
	d := max(end.Sub(run.StartedAt), 0)
	if d < 10*time.Second {
		return d.Round(time.Millisecond).String()
	}
	return FormatDuration(d, separator)
}

// DescribeLateReport is what the worker of a run reported after it was abandoned, or empty.
func DescribeLateReport(run holdfast.RunInfo) string {
	if run.LateReport == "" {
		return ""
	}
	return fmt.Sprintf("later its worker reported: %s, which does not count", run.LateReport)
}

// SortFindings sorts findings by severity, the worst first.
func SortFindings(found []holdfast.Finding) {
	order := []holdfast.Severity{holdfast.SeverityCritical, holdfast.SeverityWarning, holdfast.SeverityUnknown}
	slices.SortStableFunc(found, func(a, b holdfast.Finding) int {
		return slices.Index(order, a.Severity) - slices.Index(order, b.Severity)
	})
}
