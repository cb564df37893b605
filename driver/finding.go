package driver

import "strings"

// Finding is one thing in a store's settings that makes its locks less safe, or that could not be seen.
type Finding struct {
	Code     string   // which finding it is, such as "redis-eviction": short, and it never changes
	Severity Severity // how bad it is
	Subject  string   // the server, table or directory that it is about; empty: the store as a whole
	What     string   // what is set or happens
	Why      string   // what that does to locks
	Fix      string   // the exact setting to change
}

// String returns the finding in one line, for people.
func (f Finding) String() string {
	var b strings.Builder
	if f.Subject != "" {
		b.WriteString(f.Subject + ": ")
	}
	b.WriteString(f.What)
	if f.Why != "" {
		b.WriteString(": " + f.Why)
	}
	if f.Fix != "" {
		b.WriteString("; " + f.Fix)
	}
	return b.String()
}

// With returns the finding with a subject and with what was seen.
func (f Finding) With(subject, what string) Finding {
	f.Subject, f.What = subject, what
	return f
}

// Severity is how bad a finding is: a code, fit for logs and JSON.
type Severity string

const (
	// SeverityCritical: locks can be lost or granted twice, or calls are refused, although nothing has failed.
	SeverityCritical Severity = "critical"
	// SeverityWarning: the same can happen after a crash, a failover, a mistake or an attack, or waiting takes longer.
	SeverityWarning Severity = "warning"
	// SeverityUnknown: a setting could not be seen.
	SeverityUnknown Severity = "unknown"
)

var severityDescriptions = map[Severity]string{
	SeverityCritical: "critical: locks are at risk although nothing has failed",
	SeverityWarning:  "warning: locks are at risk when something fails",
	SeverityUnknown:  "unknown: a setting could not be seen",
}

// Description says what the code means, in a few words for people. The words may change.
func (s Severity) Description() string { return describe(severityDescriptions, s) }
