package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/system"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/text"
)

// display is where a table is shown: a terminal, or something that keeps text as it is.
type display struct {
	io.Writer
	width  int // of the terminal in columns; 0: not a terminal, nothing is shortened
	colors bool
}

// newDisplay finds out whether a writer is a terminal. Colors are for terminals only. https://no-color.org describes
// NO_COLOR, by which users turn them off.
func newDisplay(w io.Writer) *display {
	d := &display{Writer: w}
	f, ok := w.(*os.File)
	if !ok {
		return d
	}
	width, ok := system.TerminalWidth(f.Fd())
	if !ok {
		return d
	}
	d.width = width
	term := os.Getenv("TERM")
	d.colors = os.Getenv("NO_COLOR") == "" && term != "" && term != "dumb"
	return d
}

// tellNothing says on a terminal that a list is empty. For scripts an empty list is no output.
func (d *display) tellNothing(text string) error {
	if f, ok := d.Writer.(*os.File); !ok || !isTerminal(f) {
		return nil
	}
	_, err := fmt.Fprintln(d, text)
	return err
}

// Colors, as the numbers that terminals know them by.
const (
	colorRed    = 31
	colorYellow = 33
)

// stateColors are the colors of the states that an operator should notice.
var stateColors = map[string]int{"broken": colorRed, "foreign": colorYellow, "detached": colorYellow}

// paint gives a text a color, where there are colors. 0 is none.
func (d *display) paint(text string, color int) string {
	if !d.colors || color == 0 {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", color, text)
}

// minColumn is the width that a column keeps when it is shortened.
const minColumn = 12

// columnGap is the number of blanks between two columns.
const columnGap = 2

// writeTable writes rows in aligned columns. The first row has the titles. On a terminal that is too narrow, the cells
// of the columns that may be shortened end in an ellipsis, the widest first.
func (d *display) writeTable(rows [][]string, shortens ...int) error {
	widths := columnWidths(rows)
	if d.width > 0 {
		limitWidths(widths, shortens, d.width)
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			cell = text.Shorten(cell, widths[i])
			padding := widths[i] - utf8.RuneCountInString(cell) + columnGap
			line.WriteString(d.paint(cell, stateColors[cell]) + strings.Repeat(" ", padding))
		}
		if _, err := fmt.Fprintln(d, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// columnWidths are the widths of the widest cells, in characters.
func columnWidths(rows [][]string) []int {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

// limitWidths makes the columns that may be shortened narrower, the widest first, until the table fits or each of them
// has its least width.
func limitWidths(widths, shortens []int, width int) {
	total := columnGap * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	for ; total > width; total-- {
		widest := -1
		for _, i := range shortens {
			if widths[i] > minColumn && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		widths[widest]--
	}
}
