package cli

import (
	"fmt"
	"strings"
	"time"

	_ "time/tzdata" // small containers have no time zones of their own

	"github.com/robfig/cron/v3"

	"github.com/holdfast-go/holdfast"
)

// cronParser parses the five fields of crontab(5), and names such as @daily.
var cronParser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// cronSchedule is a cron expression in a time zone, with the rules of cron for days on which the clocks change: see
// Next. The parser's own schedule knows no time zone here. It is evaluated in UTC, on the times that a clock on the
// wall would show.
type cronSchedule struct {
	wall     cron.Schedule
	zone     *time.Location
	anyHour  bool // the field of the hour is * or */n
	original string
}

var _ holdfast.Schedule = (*cronSchedule)(nil)

// parseSchedule parses a cron expression.
func parseSchedule(expression, zone string) (*cronSchedule, error) {
	location, err := time.LoadLocation(zone)
	if err != nil || zone == "Local" {
		return nil, usageError("--tz: there is no time zone %s; give a name such as Europe/Berlin, or UTC", quoteName(zone))
	}
	// The parser takes these two as well.
	if strings.Contains(expression, "TZ=") {
		return nil, usageError("--schedule: give the time zone with --tz, and not in the expression")
	}
	if strings.HasPrefix(strings.TrimSpace(expression), "@every") {
		return nil, usageError("--schedule: use --every for slots of a fixed length")
	}
	fields := strings.Fields(expression)
	if len(fields) == 5 {
		fields[4] = renameSunday(fields[4])
	}
	parsed, err := cronParser.Parse(strings.Join(fields, " "))
	if err != nil {
		return nil, usageError("--schedule %q: %s; give the five fields of crontab(5), such as '0 3 * * *', or a name "+
			"such as @daily", expression, describeScheduleError(fields, err))
	}
	s := &cronSchedule{wall: parsed, zone: location, original: expression}
	if len(fields) == 5 {
		s.anyHour = fields[1] == "*" || strings.HasPrefix(fields[1], "*/")
		s.restoreStars(fields)
	} else {
		s.anyHour = strings.Join(fields, " ") == "@hourly"
	}
	if parsed.Next(time.Unix(0, 0).UTC()).IsZero() {
		return nil, usageError("--schedule %q: there is no such day", expression)
	}
	return s, nil
}

// describeScheduleError says what is wrong with a schedule. Some programs have more than crontab(5): seconds, a year,
// and letters for days such as the last one of a month.
func describeScheduleError(fields []string, err error) string {
	for _, field := range fields {
		if strings.ContainsAny(field, "LW#") && strings.Trim(field, "0123456789LW#,-") == "" {
			return fmt.Sprintf("crontab(5) has no L, W and #, as in %q", field)
		}
	}
	if len(fields) < 5 && !strings.HasPrefix(strings.Join(fields, ""), "@") {
		return fmt.Sprintf("it has %d of the five fields; quote all of them, or the shell makes words of them", len(fields))
	}
	if len(fields) > 5 {
		return fmt.Sprintf("it has %d fields; crontab(5) has no seconds and no years", len(fields))
	}
	text, _, _ := strings.Cut(err.Error(), ": strconv.")
	return text
}

// renameSunday replaces a 7 for Sunday, which crontab(5) allows and the parser does not.
func renameSunday(daysOfWeek string) string {
	days := strings.Split(daysOfWeek, ",")
	for i, day := range days {
		if first, ok := strings.CutSuffix(day, "-7"); ok {
			days[i] = first + "-6,0"
		} else if day == "7" {
			days[i] = "0"
		}
	}
	return strings.Join(days, ",")
}

// restoreStars makes a day field such as */2 count as one with a star, as crontab(5) says. If one of the two day fields
// begins with a star, a day must match both; otherwise it must match one of them.
func (s *cronSchedule) restoreStars(fields []string) {
	const starBit = 1 << 63 // the parser's mark of a field with a star
	spec, ok := s.wall.(*cron.SpecSchedule)
	if !ok {
		return
	}
	if strings.HasPrefix(fields[2], "*") {
		spec.Dom |= starBit
	}
	if strings.HasPrefix(fields[4], "*") {
		spec.Dow |= starBit
	}
}

// String shows the schedule and the time zone.
func (s *cronSchedule) String() string { return fmt.Sprintf("%q in %s", s.original, s.zone) }

// Next returns the first moment after another one at which the schedule fires, or the zero Time if there is none.
//
// If the field of the hour is * or */n, the schedule fires at each moment at which the clock on the wall shows such a
// time. So when an hour is repeated, it fires in both. Otherwise each time of the day counts once: one that the clock
// skips fires at the moment of the jump, and one that the clock shows twice fires at the first.
func (s *cronSchedule) Next(after time.Time) time.Time {
	if s.anyHour {
		return s.nextShown(after)
	}
	for wall := s.wall.Next(wallTime(after.In(s.zone))); !wall.IsZero(); wall = s.wall.Next(wall) {
		if at := s.firstMoment(wall); at.After(after) {
			return at
		}
	}
	return time.Time{}
}

// nextShown returns the first moment after another one at which the clock shows a time of the schedule. Between two
// changes of the clock, it differs from UTC by a fixed offset.
func (s *cronSchedule) nextShown(after time.Time) time.Time {
	local := after.In(s.zone)
	from := wallTime(local)
	for {
		wall := s.wall.Next(from)
		if wall.IsZero() {
			return wall
		}
		_, offset := local.Zone()
		_, change := local.ZoneBounds()
		if at := fromWall(wall, offset); change.IsZero() || at.Before(change) {
			return at
		}
		local = change.In(s.zone)
		from = wallTime(local).Add(-1) // the moment of the change itself counts
	}
}

// firstMoment returns the first moment at which the clock shows a time, or the moment at which it skips that time.
func (s *cronSchedule) firstMoment(wall time.Time) time.Time {
	const largestOffset = 27 * time.Hour // no clock differs from UTC by more, even around a change of the date line
	local := wall.Add(-largestOffset).In(s.zone)
	for {
		_, offset := local.Zone()
		start, change := local.ZoneBounds()
		at := fromWall(wall, offset)
		switch {
		case !start.IsZero() && at.Before(start):
			return start.UTC()
		case change.IsZero() || at.Before(change):
			return at
		}
		local = change.In(s.zone)
	}
}

// wallTime is what the clock shows at a local time, as a time in UTC.
func wallTime(local time.Time) time.Time {
	_, offset := local.Zone()
	return local.UTC().Add(time.Duration(offset) * time.Second)
}

// fromWall is the moment at which a clock with an offset from UTC, in seconds, shows a time.
func fromWall(wall time.Time, offset int) time.Time {
	return wall.Add(-time.Duration(offset) * time.Second)
}
