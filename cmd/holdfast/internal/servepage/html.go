package servepage

import (
	"html"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/text"
)

// markup is HTML that is safe to send. All text in it was escaped by the functions of this file. (html/template would
// make the linker keep every exported method of the whole program, which would be 17 MB larger.)
type markup string

// attrs are the attributes of an element: names and values in turn. The names are constants of this package, and the
// values are escaped. A name with the value noAttr is left out.
type attrs []string

// noAttr is the value of an attribute that an element does not have.
const noAttr = "\x00"

// attrIf returns value if it applies, and otherwise noAttr.
func attrIf(applies bool, value string) string {
	if applies {
		return value
	}
	return noAttr
}

// escape makes a text safe as content and as the value of an attribute. What is not UTF-8, and control characters,
// which HTML does not allow, are replaced.
func escape(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	return html.EscapeString(s)
}

// plain is a text of this package.
func plain(s string) markup { return markup(escape(s)) }

// number shows a number in a cell.
func number[T int | int64](n T) markup { return markup(strconv.FormatInt(int64(n), 10)) }

// foreignText is a text that others have written into a store: it is printable, and its direction does not change the
// text around it.
func foreignText(s string) markup { return element("bdi", nil, plain(text.Printable(s))) }

// nameText is the name of a lock or the key of a run, in quotes if it could be mistaken for something else.
func nameText(s string) markup { return element("bdi", nil, plain(text.QuoteName(s))) }

// element is an element with its content.
func element(name string, a attrs, content ...markup) markup {
	var b strings.Builder
	openTag(&b, name, a)
	for _, c := range content {
		b.WriteString(string(c))
	}
	b.WriteString("</" + name + ">")
	return markup(b.String())
}

// voidElement is an element that has no content and no end, such as input.
func voidElement(name string, a attrs) markup {
	var b strings.Builder
	openTag(&b, name, a)
	return markup(b.String())
}

func openTag(b *strings.Builder, name string, a attrs) {
	b.WriteString("<" + name)
	for i := 0; i+1 < len(a); i += 2 {
		if a[i+1] != noAttr {
			b.WriteString(" " + a[i] + `="` + escape(a[i+1]) + `"`)
		}
	}
	b.WriteString(">")
}

// join puts elements one after the other.
func join(parts ...markup) markup {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(string(p))
	}
	return markup(b.String())
}

func link(href string, content ...markup) markup {
	return element("a", attrs{"href", href}, content...)
}

func div(class string, content ...markup) markup {
	return element("div", attrs{"class", class}, content...)
}

func paragraph(class string, content ...markup) markup {
	return element("p", attrs{"class", attrIf(class != "", class)}, content...)
}

func span(class string, content ...markup) markup {
	return element("span", attrs{"class", class}, content...)
}

// column is one column of a table.
type column struct {
	title   string
	href    string // sorts the table by this column; empty: it does not
	sorted  string // "ascending" or "descending" if the table is sorted by it
	numbers bool   // right-aligned
}

// row is one row of a table. It has one cell per column, in their order. key is what tells it from others when
// the page is brought up to date, and news is what is said aloud when it has changed.
type row struct {
	key, class, news string
	cells            []markup
}

// table is a table with a caption for screen readers. The roles repeat what the elements mean, because a narrow screen
// shows the rows as cards, and browsers then forget that they are rows. The first cell of a row is its header.
func table(caption string, columns []column, rows []row) markup {
	var head, body []markup
	for _, c := range columns {
		title := plain(c.title)
		if c.href != "" {
			title = link(c.href, title)
		}
		head = append(head, element("th", attrs{"scope", "col", "role", "columnheader",
			"aria-sort", attrIf(c.sorted != "", c.sorted), "class", attrIf(c.numbers, "number")}, title))
	}
	for _, r := range rows {
		var cells []markup
		for i, cell := range r.cells {
			name, role, scope := "td", "cell", noAttr
			if i == 0 {
				name, role, scope = "th", "rowheader", "row"
			}
			cells = append(cells, element(name, attrs{"scope", scope, "role", role, "data-label", columns[i].title,
				"class", attrIf(columns[i].numbers, "number")}, div("cell", cell)))
		}
		body = append(body, element("tr",
			attrs{"role", "row", "data-key", r.key, "class", attrIf(r.class != "", r.class),
				"data-news", attrIf(r.news != "", r.news)}, cells...))
	}
	return element("table", attrs{"role", "table"},
		element("caption", attrs{"class", "for-readers"}, plain(caption)),
		element("thead", attrs{"role", "rowgroup"}, element("tr", attrs{"role", "row"}, head...)),
		element("tbody", attrs{"role", "rowgroup"}, body...))
}

// definition is one line of a list of facts.
type definition struct {
	term  string
	value markup
}

// facts is a list of facts.
func facts(list ...definition) markup {
	var lines []markup
	for _, d := range list {
		lines = append(lines, div("fact", element("dt", nil, plain(d.term)), element("dd", nil, d.value)))
	}
	return element("dl", attrs{"class", "facts"}, lines...)
}

// badge is a state in words. The color only repeats it.
func badge(class, words string) markup { return span("badge "+class, plain(words)) }
