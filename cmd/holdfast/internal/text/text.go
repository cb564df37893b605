// Package text makes text safe to be shown. Names, owners and the names of processes are written by others. It is not a
// part of package shown, because the guard of a command shows text as well, and needs nothing of the library.
package text

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// QuoteName is a name or an owner as it is shown: in quotes if it is empty or contains blanks, quotes or anything
// unprintable.
func QuoteName(s string) string {
	special := func(r rune) bool { return r == ' ' || r == '"' || r == '\'' || r == '\\' || !unicode.IsPrint(r) }
	if s == "" || strings.ContainsFunc(s, special) || strings.ContainsRune(s, unicode.ReplacementChar) {
		return strconv.Quote(s)
	}
	return s
}

// Printable is free text as it is shown: in quotes if it could break the line or control the terminal.
func Printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// Message makes a line of stderr. Text that others have written into a store can neither break the line nor control the
// terminal.
func Message(format string, args ...any) string {
	return "holdfast: " + OneLine(fmt.Sprintf(format, args...)) + "\n"
}

// OneLine makes a text safe to print in one line: no line breaks, nothing that is not printable.
func OneLine(s string) string {
	s = strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "; ")
	return strings.Map(func(r rune) rune {
		if r == '\t' {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// Shorten returns a text of at most n characters, which ends in an ellipsis if something is left out.
func Shorten(s string, n int) string {
	all := []rune(s)
	if len(all) <= n {
		return s
	}
	return string(all[:max(0, n-1)]) + "…"
}
