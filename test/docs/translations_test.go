package docs

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// translations are the documents that exist in another language: the path of the original.
var translations = map[string]string{
	"docs/README.ja.md":   "README.md",
	"docs/choosing.ja.md": "docs/choosing.md",
}

// section is what stands under one heading of a document.
type section struct {
	level int    // how many # the heading has
	title string // the heading
	text  string // without the heading
}

var (
	fencedBlock  = regexp.MustCompile("(?ms)^```.*?^```$")
	indentedLine = regexp.MustCompile(`(?m)^    \S.*$`)
	inlineCode   = regexp.MustCompile("`[^`\n]+`")
	linkTarget   = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	number       = regexp.MustCompile(`[0-9][0-9,.]*[0-9]|[0-9]`)
	comment      = regexp.MustCompile(`\s+(#|//) .*$`)
	// ofOriginal says which text of the original a section was translated from.
	ofOriginal = regexp.MustCompile(`(?m)^<!-- original ([0-9a-f]{8}) -->\n`)
)

// TestTranslations: each translated document has the sections, the commands, the programs, the tables and the links of
// its original, and each section was translated from the present text of the original.
func TestTranslations(t *testing.T) {
	for file, original := range translations {
		ours, theirs := sectionsOf(readDocument(t, filepath.Join(root, file))), sectionsOf(readDocument(t, filepath.Join(root, original)))
		if len(ours) != len(theirs) {
			t.Errorf("%s has %d sections, and %s has %d", file, len(ours), original, len(theirs))
			continue
		}
		for i, s := range ours {
			from := theirs[i]
			where := fmt.Sprintf("%s, %q (in %s: %q)", file, s.title, original, from.title)
			if s.level != from.level {
				t.Errorf("%s: the heading has another level", where)
			}
			compareParts(t, where, "code", codeBlocks(s.text), codeBlocks(from.text))
			compareParts(t, where, "words in code", sortedSet(inlineCode.FindAllString(prose(s.text), -1)),
				sortedSet(inlineCode.FindAllString(prose(from.text), -1)))
			compareParts(t, where, "links", sortedSet(targetsOf(s.text)),
				sortedSet(translatedTargets(t, file, original, targetsOf(from.text))))
			compareTables(t, where, tableRows(s.text), tableRows(from.text))
			sum := sha256.Sum256([]byte(from.text))
			hash := fmt.Sprintf("%x", sum[:4])
			if m := ofOriginal.FindStringSubmatch(s.text); m == nil || m[1] != hash {
				t.Errorf("%s: the original has changed. Compare the section with it, translate what is different, and write\n<!-- original %s -->\nbelow the heading", where, hash)
			}
		}
	}
}

// sectionsOf divides a document at its headings. The line that leads to the other language belongs to none.
func sectionsOf(document string) (all []section) {
	inCode := false
	for line := range strings.Lines(document) {
		if strings.HasPrefix(line, "```") {
			inCode = !inCode
		}
		if level := len(line) - len(strings.TrimLeft(line, "#")); level > 0 && !inCode {
			all = append(all, section{level: level, title: strings.TrimSpace(line[level:])})
		} else if len(all) > 0 && !strings.HasPrefix(line, "[English](") && !strings.HasPrefix(line, "English | [") {
			all[len(all)-1].text += line
		}
	}
	return all
}

// codeBlocks are the lines of the blocks of code, without comments and without what aligns them.
func codeBlocks(text string) (lines []string) {
	blocks := fencedBlock.FindAllString(text, -1)
	blocks = append(blocks, indentedLine.FindAllString(fencedBlock.ReplaceAllString(text, ""), -1)...)
	for _, b := range blocks {
		for line := range strings.Lines(b) {
			if line = strings.TrimSpace(comment.ReplaceAllString(strings.TrimRight(line, "\n"), "")); line != "" {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// prose is a text without its blocks of code, and with each paragraph on one line.
func prose(text string) string {
	text = indentedLine.ReplaceAllString(fencedBlock.ReplaceAllString(text, ""), "")
	return regexp.MustCompile(`\n *(\S)`).ReplaceAllString(text, " $1")
}

func targetsOf(text string) (targets []string) {
	for _, m := range linkTarget.FindAllStringSubmatch(text, -1) {
		targets = append(targets, m[1])
	}
	return targets
}

// translatedTargets are the targets of links of an original, each as its translation has it: from the folder of the
// translation, and to a translation if there is one.
func translatedTargets(t *testing.T, translation, original string, targets []string) (all []string) {
	t.Helper()
	for _, target := range targets {
		path, heading, hasHeading := strings.Cut(target, "#")
		if path != "" && !strings.Contains(path, ":") {
			path = filepath.Join(filepath.Dir(original), path)
			for other, from := range translations {
				if from == path && !hasHeading {
					path = other
				}
			}
			relative, err := filepath.Rel(filepath.Dir(translation), path)
			if err != nil {
				t.Fatal(err)
			}
			if target = relative; hasHeading {
				target += "#" + heading
			}
		}
		all = append(all, target)
	}
	return all
}

func tableRows(text string) (rows []string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "|") {
			rows = append(rows, line)
		}
	}
	return rows
}

// compareTables checks that the rows have the same number of columns, and that no number of the original is missing. A
// translation may have more: some languages write one as 1.
func compareTables(t *testing.T, where string, ours, theirs []string) {
	t.Helper()
	if len(ours) != len(theirs) {
		t.Errorf("%s: the tables have %d rows instead of %d", where, len(ours), len(theirs))
		return
	}
	for i, row := range ours {
		if strings.Count(row, "|") != strings.Count(theirs[i], "|") {
			t.Errorf("%s: another number of columns: %s", where, row)
		}
		numbers := number.FindAllString(row, -1)
		for _, n := range number.FindAllString(theirs[i], -1) {
			if !slices.Contains(numbers, n) {
				t.Errorf("%s: %s is missing: %s", where, n, row)
			}
		}
	}
}

func sortedSet(words []string) []string {
	slices.Sort(words)
	return slices.Compact(words)
}

// compareParts reports what one text has and the other one has not.
func compareParts(t *testing.T, where, what string, ours, theirs []string) {
	t.Helper()
	if slices.Equal(ours, theirs) {
		return
	}
	for _, w := range ours {
		if !slices.Contains(theirs, w) {
			t.Errorf("%s: %s: only the translation has %s", where, what, w)
		}
	}
	for _, w := range theirs {
		if !slices.Contains(ours, w) {
			t.Errorf("%s: %s: the translation lacks %s", where, what, w)
		}
	}
	if !t.Failed() {
		t.Errorf("%s: %s: in another order or number", where, what)
	}
}
