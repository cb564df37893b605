package cli

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/holdfast-go/holdfast"
)

// TestScheduleAcrossClockChanges: each time of the day counts once, also on days on which the clocks change. A job with
// any hour goes by elapsed time.
func TestScheduleAcrossClockChanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cron, zone, after string
		want              []string // in UTC
	}{
		{"0 3 * * *", "Asia/Tokyo", "2026-03-28T18:00:00Z", // no changes there
			[]string{"2026-03-29T18:00:00Z", "2026-03-30T18:00:00Z"}},
		// Berlin, 29 March: 02:00 becomes 03:00, at 01:00 in UTC.
		{"30 2 * * *", "Europe/Berlin", "2026-03-27T12:00:00Z",
			[]string{"2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"}},
		{"0 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"}},
		{"0 3 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T01:00:00Z"}},
		{"0,30 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", // three of them are the moment of the change
			[]string{"2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z", "2026-03-30T00:00:00Z"}},
		{"0 * * * *", "Europe/Berlin", "2026-03-28T23:30:00Z",
			[]string{"2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"}},
		{"30 */2 * * *", "Europe/Berlin", "2026-03-28T23:00:00Z",
			[]string{"2026-03-28T23:30:00Z", "2026-03-29T02:30:00Z"}},
		// Berlin, 25 October: 03:00 becomes 02:00, at 01:00 in UTC.
		{"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z",
			[]string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		{"30 2 * * *", "Europe/Berlin", "2026-10-25T00:45:00Z", []string{"2026-10-26T01:30:00Z"}},
		{"30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", []string{"2026-10-26T01:30:00Z"}}, // the second 02:10
		{"0 3 * * *", "Europe/Berlin", "2026-10-25T00:59:00Z", []string{"2026-10-25T02:00:00Z", "2026-10-26T02:00:00Z"}},
		{"30 * * * *", "Europe/Berlin", "2026-10-25T00:00:00Z",
			[]string{"2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"}},
		{"@hourly", "Europe/Berlin", "2026-10-24T23:30:00Z",
			[]string{"2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"}},
		{"* 2 * * *", "Europe/Berlin", "2026-10-25T00:58:00Z", []string{"2026-10-25T00:59:00Z", "2026-10-26T01:00:00Z"}},
		// New York, 8 March: 02:00 becomes 03:00, at 07:00 in UTC. 1 November: 02:00 becomes 01:00, at 06:00 in UTC.
		{"15 2 * * *", "America/New_York", "2026-03-07T12:00:00Z",
			[]string{"2026-03-08T07:00:00Z", "2026-03-09T06:15:00Z"}},
		{"30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z",
			[]string{"2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"}},
		{"0 2 * * *", "America/New_York", "2026-10-31T12:00:00Z",
			[]string{"2026-11-01T07:00:00Z", "2026-11-02T07:00:00Z"}},
		{"@daily", "America/New_York", "2026-03-07T12:00:00Z", []string{"2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"}},
		// Half an hour of change, a change at midnight, and a day that was skipped.
		{"15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00Z",
			[]string{"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"}},
		{"0 0 * * *", "America/Havana", "2026-03-07T12:00:00Z", []string{"2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"}},
		{"0 12 * * *", "Pacific/Apia", "2011-12-29T23:00:00Z", // 30 December 2011 did not exist there
			[]string{"2011-12-30T10:00:00Z", "2011-12-30T22:00:00Z"}},
		{"0 3 * * *", "UTC", "2026-03-29T03:00:00Z", []string{"2026-03-30T03:00:00Z"}},
	} {
		s, err := parseSchedule(c.cron, c.zone)
		if err != nil {
			t.Errorf("%q in %s: %v", c.cron, c.zone, err)
			continue
		}
		at, err := time.Parse(time.RFC3339, c.after)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for range c.want {
			at = s.Next(at)
			got = append(got, at.UTC().Format(time.RFC3339))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%q in %s after %s:\n want %q\n got  %q", c.cron, c.zone, c.after, c.want, got)
		}
	}
}

// TestScheduleIsStrictlyLater: Next is always later, and no slot is passed over, whatever moment it is asked from.
func TestScheduleIsStrictlyLater(t *testing.T) {
	t.Parallel()
	for _, cron := range []string{"30 2 * * *", "*/7 * * * *", "0,30 1-3 * * *", "15 */3 * * *", "* 2 * * *", "5 0 1 * 1"} {
		for _, zone := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Tokyo"} {
			s, err := parseSchedule(cron, zone)
			if err != nil {
				t.Fatal(err)
			}
			for _, day := range []time.Time{
				time.Date(2026, 3, 7, 22, 0, 0, 0, time.UTC), time.Date(2026, 3, 28, 22, 0, 0, 0, time.UTC),
				time.Date(2026, 10, 3, 12, 0, 0, 0, time.UTC), time.Date(2026, 10, 24, 22, 0, 0, 0, time.UTC),
				time.Date(2026, 10, 31, 22, 0, 0, 0, time.UTC),
			} {
				next := s.Next(day)
				for at := day; at.Before(day.Add(12 * time.Hour)); at = at.Add(time.Minute) {
					if !next.After(at) {
						next = s.Next(next)
					}
					if got := s.Next(at); !got.After(at) || !got.Equal(next) {
						t.Fatalf("%q in %s after %v: got %v, want %v", cron, zone, at, got, next)
					}
				}
			}
		}
	}
}

// TestScheduleFields: expressions mean what crontab(5) says.
func TestScheduleFields(t *testing.T) {
	t.Parallel()
	const after = "2026-02-10T12:00:00Z" // a Tuesday
	for cron, want := range map[string]string{
		"0 0 * * 7":          "2026-02-15", // Sunday is 0 or 7
		"0 0 * * 6-7":        "2026-02-14",
		"0 0 * * sun":        "2026-02-15",
		"0 0 13 * 5":         "2026-02-13",
		"0 0 20 * 4":         "2026-02-12", // either matches
		"0 0 */2 * 3":        "2026-02-11", // both must match
		"0 0 1 1 *":          "2027-01-01",
		"0 0 29 2 *":         "2028-02-29",
		"@monthly":           "2026-03-01",
		" 0  0  1-5  mar * ": "2026-03-01",
	} {
		s, err := parseSchedule(cron, "UTC")
		if err != nil {
			t.Errorf("%q: %v", cron, err)
			continue
		}
		at, _ := time.Parse(time.RFC3339, after)
		if got := s.Next(at).Format(time.RFC3339); !strings.HasPrefix(got, want+"T00:00") {
			t.Errorf("%q: want %s, got %s", cron, want, got)
		}
	}
}

// TestSchedulesOfRobfigCron: the library takes the cron expressions of robfig/cron, in UTC unless they name a time
// zone. It refuses "@every", which counts from the moment at which it is asked, so that each worker would get a slot
// of its own.
func TestSchedulesOfRobfigCron(t *testing.T) {
	t.Parallel()
	ledger := newLedgerAt(t, time.Date(2031, 5, 1, 12, 34, 56, 789, time.UTC))
	for expression, want := range map[string]string{
		"0 3 * * *":                       "2031-05-01T03:00:00Z",
		"CRON_TZ=Asia/Tokyo 0 3 * * *":    "2031-04-30T18:00:00Z",
		"CRON_TZ=Europe/Berlin 0 3 * * *": "2031-05-01T01:00:00Z",
		"@daily":                          "2031-05-01T00:00:00Z",
		"@every 1h":                       "",
		"@every 1m30s":                    "",
	} {
		schedule, err := cron.ParseStandard(expression)
		if err != nil {
			t.Fatal(err)
		}
		slot, err := ledger.CurrentSlot(t.Context(), schedule)
		if want == "" && !errors.Is(err, holdfast.ErrInvalid) || want != "" && (err != nil || formatSlot(slot.Start) != want) {
			t.Errorf("%s: slot %v, %v; want %q", expression, slot.Start, err, want)
		}
	}
}
