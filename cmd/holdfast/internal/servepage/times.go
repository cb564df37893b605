package servepage

import (
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
)

// describeDuration is a duration in its two largest units.
func describeDuration(d time.Duration) string { return shown.FormatDuration(d, " ") }

// age shows for how long something has been so. The script counts on. now is the time of the page.
func age(since, now time.Time) markup {
	if since.IsZero() {
		return plain("unknown")
	}
	return element("time", attrs{"datetime", since.UTC().Format(time.RFC3339), "title", describeTime(since),
		"data-since", unixMilli(since)}, plain(describeDuration(max(0, now.Sub(since)))))
}

// timeLeft shows how long something lasts. The script counts down.
func timeLeft(until, now time.Time) markup {
	if until.IsZero() {
		return plain("unknown")
	}
	return element("time", attrs{"datetime", until.UTC().Format(time.RFC3339), "title", describeTime(until),
		"data-until", unixMilli(until)}, plain(describeDuration(max(0, until.Sub(now)))))
}

// clockTime shows a moment of today by its time, and any other with its day.
func clockTime(t, now time.Time) markup {
	if t.IsZero() {
		return plain("unknown")
	}
	form := "15:04:05"
	if t, now := t.UTC(), now.UTC(); t.YearDay() != now.YearDay() || t.Year() != now.Year() {
		form = "2006-01-02 15:04:05"
	}
	return element("time", attrs{"datetime", t.UTC().Format(time.RFC3339Nano), "title", describeTime(t)},
		plain(t.UTC().Format(form)))
}

// describeTime shows a moment in full.
func describeTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

func unixMilli(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }
