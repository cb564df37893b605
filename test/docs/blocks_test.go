package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// codeBlock is one block of code of a document.
type codeBlock struct {
	line     int    // of its first line of code
	language string // what follows the three backticks, or empty
	text     string
}

var (
	fence      = regexp.MustCompile("^( *)```([a-z]*)$")
	listItem   = regexp.MustCompile(`^ *([-*]|[0-9]+\.) `)
	codeSpan   = regexp.MustCompile("`([^`]+)`")
	fourSpaces = "    "
)

// documentBlocks returns a document's blocks of code, without their indentation. An indented block begins after an
// empty line. Below an item of a list, four spaces may also be a paragraph of it; there, code has seven.
func documentBlocks(t *testing.T, file string) (blocks []codeBlock) {
	t.Helper()
	var b *codeBlock
	indent, fenced, inList, afterEmpty := "", false, false, true
	end := func() {
		if b != nil {
			b.text = strings.TrimRight(b.text, "\n") + "\n"
			blocks = append(blocks, *b)
		}
		b, fenced = nil, false
	}
	number := 0
	for line := range strings.Lines(readDocument(t, file)) {
		number++
		m := fence.FindStringSubmatch(strings.TrimRight(line, "\n"))
		switch {
		case m != nil && fenced:
			end()
		case m != nil:
			end()
			b, fenced, indent = &codeBlock{line: number + 1, language: m[2]}, true, m[1]
		case fenced:
			b.text += strings.TrimPrefix(line, indent)
		case strings.TrimSpace(line) == "":
			if b != nil {
				b.text += line
			}
			afterEmpty = true
			continue
		case b != nil && strings.HasPrefix(line, indent):
			b.text += strings.TrimPrefix(line, indent)
		default:
			end()
			if listItem.MatchString(line) {
				inList = true
			} else if !strings.HasPrefix(line, " ") {
				inList = false
			}
			indent = fourSpaces
			if inList {
				indent = fourSpaces + "   "
			}
			if afterEmpty && strings.HasPrefix(line, indent) {
				b = &codeBlock{line: number, text: strings.TrimPrefix(line, indent)}
			}
		}
		afterEmpty = false
	}
	if fenced {
		t.Errorf("%s: the block of line %d has no end", file, b.line)
	}
	end()
	return blocks
}

// documentName is a document's path below the root.
func documentName(t *testing.T, file string) string {
	t.Helper()
	name, err := filepath.Rel(root, file)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.ToSlash(name)
}
