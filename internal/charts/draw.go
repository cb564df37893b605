package main

import (
	"bytes"
	"fmt"
	"html"
	"strconv"
	"strings"
)

// The measures of a picture, in pixels.
const (
	pageWidth  = 760
	labelWidth = 200
	valueWidth = 90
	rowHeight  = 26
	barHeight  = 16
	topHeight  = 58
)

// style has all colors: those for a light background, and then those for a dark one.
const style = `  <style>
    .page { fill: #ffffff; }
    text { fill: #1f2328; }
    .note { fill: #59636e; font-size: 12px; }
    .ours { fill: #0969da; }
    .other { fill: #afb8c1; }
    @media (prefers-color-scheme: dark) {
      .page { fill: #0d1117; }
      text { fill: #e6edf3; }
      .note { fill: #9198a1; }
      .ours { fill: #4493f8; }
      .other { fill: #484f58; }
    }
  </style>
`

// draw draws the bars. The picture says all figures in words, too, for those who do not see it.
func (c chart) draw(bars []bar) []byte {
	longest := 0.0
	var said []string
	for _, b := range bars {
		longest = max(longest, b.value)
		said = append(said, b.label+" "+formatValue(b.value))
	}
	height := topHeight + rowHeight*len(bars) + 8
	var out bytes.Buffer
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-labelledby="title desc"
     font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="13">
  <title id="title">%s</title>
  <desc id="desc">%s: %s.</desc>
%s  <rect class="page" width="%d" height="%d"/>
  <text x="12" y="24" font-size="15" font-weight="600">%s</text>
  <text class="note" x="12" y="44">%s; %s</text>
`, pageWidth, height, html.EscapeString(c.title), html.EscapeString(c.unit), html.EscapeString(strings.Join(said, ", ")),
		style, pageWidth, height, html.EscapeString(c.title), html.EscapeString(c.unit), c.better)
	for i, b := range bars {
		y := topHeight + rowHeight*i
		class := "other"
		if strings.HasPrefix(b.label, "holdfast") {
			class = "ours"
		}
		width := b.value / longest * (pageWidth - labelWidth - valueWidth)
		fmt.Fprintf(&out, `  <text x="%d" y="%d" text-anchor="end">%s</text>
  <rect class="%s" x="%d" y="%d" width="%.1f" height="%d" rx="2"/>
  <text x="%.1f" y="%d">%s</text>
`, labelWidth-10, y+13, html.EscapeString(b.label), class, labelWidth, y, width, barHeight,
			labelWidth+width+8, y+13, formatValue(b.value))
	}
	out.WriteString("</svg>\n")
	return out.Bytes()
}

// formatValue writes a figure without a fraction, and with a comma between thousands.
func formatValue(v float64) string {
	digits := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
