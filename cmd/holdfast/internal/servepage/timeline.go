package servepage

import (
	"fmt"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/text"
)

// The sizes of a timeline, in units of the drawing.
const (
	timelineWidth  = 1080
	timelineLabel  = 200 // the width of the names
	timelineRow    = 24
	timelineAxis   = 22
	maxTimeline    = 20 // how many claims are drawn
	timelineTicks  = 4
	minTimelineFor = time.Minute
)

// bar is one line of a timeline: a time of waiting and a time of work, each of which may be missing.
type bar struct {
	label, title         string
	waitedFrom, workFrom time.Time
	end                  time.Time // zero: not yet
	class                string    // of the work: "held", "broken", "succeeded", "failed", "started"
	beganBefore          bool
}

// timeline draws bars, the first at the top. The same facts are in a table next to it, so its text for screen readers
// is short.
func timeline(title string, bars []bar, now time.Time) markup {
	bars = bars[max(0, len(bars)-maxTimeline):]
	if len(bars) == 0 {
		return ""
	}
	from := now.Add(-minTimelineFor)
	for _, b := range bars {
		if start := b.start(); !b.beganBefore && start.Before(from) {
			from = start
		}
	}
	to := now
	x := func(t time.Time) float64 {
		part := float64(t.Sub(from)) / float64(to.Sub(from))
		return timelineLabel + min(max(part, 0), 1)*(timelineWidth-timelineLabel-8)
	}
	height := timelineAxis + len(bars)*timelineRow + 4
	shapes := []markup{element("title", attrs{"id", "timeline-title"}, plain(title))}
	form := "15:04:05"
	if to.Sub(from) > 24*time.Hour {
		form = "01-02 15:04"
	}
	for i := range timelineTicks + 1 {
		at := from.Add(to.Sub(from) * time.Duration(i) / timelineTicks)
		anchor := "middle"
		if i == timelineTicks {
			anchor = "end"
		}
		shapes = append(shapes,
			element("line", attrs{"class", "tick", "x1", decimal(x(at)), "x2", decimal(x(at)), "y1",
				strconv.Itoa(timelineAxis - 4),
				"y2", strconv.Itoa(height)}),
			element("text", attrs{"class", "axis", "x", decimal(x(at)), "y", "12", "text-anchor", anchor},
				plain(at.UTC().Format(form))))
	}
	for i, b := range bars {
		y := timelineAxis + i*timelineRow
		shapes = append(shapes, element("text", attrs{"class", "label", "x", "0", "y", strconv.Itoa(y + 16)},
			plain(text.Shorten(text.Printable(b.label), 26))))
		end := b.end
		if end.IsZero() {
			end = now
		}
		rect := func(class string, from, to time.Time) markup {
			return element("rect", attrs{"class", class, "x", decimal(x(from)), "y", strconv.Itoa(y + 4), "rx", "3",
				"width", decimal(max(x(to)-x(from), 3)), "height", strconv.Itoa(timelineRow - 8)},
				element("title", nil, plain(b.title)))
		}
		if !b.waitedFrom.IsZero() {
			until := b.workFrom
			if until.IsZero() {
				until = end
			}
			shapes = append(shapes, rect("waited", b.waitedFrom, until))
		}
		if !b.workFrom.IsZero() {
			shapes = append(shapes, rect(b.class, b.workFrom, end))
		}
	}
	return element("div", attrs{"class", "timeline", "role", "group", "aria-label", title, "tabindex", "0"},
		element("svg", attrs{"viewBox", fmt.Sprintf("0 0 %d %d", timelineWidth, height), "role", "img",
			"aria-labelledby", "timeline-title", "width", strconv.Itoa(timelineWidth), "height", strconv.Itoa(height)}, shapes...))
}

func (b bar) start() time.Time {
	if !b.waitedFrom.IsZero() {
		return b.waitedFrom
	}
	return b.workFrom
}

func decimal(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) }
