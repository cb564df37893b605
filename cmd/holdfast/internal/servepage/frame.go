package servepage

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// content is what a page shows between its header and its footer.
type content struct {
	title  string
	status int    // of the response; 0: 200
	seeAt  string // not empty: the response is a redirection there
	part   string // which part of the site it is: "locks", "runs" or "health"
	fixed  markup // is not brought up to date: headings, forms to search
	live   markup // is brought up to date
	events string // the query of /events that tells of its changes; empty: it does not change
	at     time.Time
	cookie *http.Cookie
}

// pageFunc makes a page. An error that is no *pageError is a failure of the store.
type pageFunc func(r *http.Request) (*content, error)

// pageError is an error with the status of its response.
type pageError struct {
	status int
	text   string
}

func (e *pageError) Error() string { return e.text }

func newPageError(status int, format string, args ...any) *pageError {
	return &pageError{status, fmt.Sprintf(format, args...)}
}

// servePage sends what a function makes.
func (p *Page) servePage(show pageFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := show(r)
		if err != nil {
			c = p.errorContent(err)
		}
		if c.cookie != nil {
			http.SetCookie(w, c.cookie)
		}
		if c.seeAt != "" {
			http.Redirect(w, r, c.seeAt, http.StatusSeeOther)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		if c.status != 0 {
			w.WriteHeader(c.status)
		}
		_, _ = w.Write([]byte(p.frame(r, c)))
	})
}

// errorContent is the page of an error.
func (p *Page) errorContent(err error) *content {
	e := &pageError{status: http.StatusBadGateway}
	if !errors.As(err, &e) {
		e = describeStoreError(err)
	}
	return &content{title: http.StatusText(e.status), status: e.status, fixed: join(
		element("h1", nil, plain(http.StatusText(e.status))),
		element("p", attrs{"class", "problem", "role", "alert"}, plain(e.text)),
		paragraph("", link("/", plain("All locks"))))}
}

// frame is the whole page.
func (p *Page) frame(r *http.Request, c *content) markup {
	if c.at.IsZero() {
		c.at = time.Now()
	}
	part := func(name, href, title string) markup {
		return element("li", nil, element("a", attrs{"href", href, "aria-current", attrIf(c.part == name, "page")},
			plain(title)))
	}
	mode := badge("quiet", "read-only")
	if p.opts.AllowBreak && (p.opts.Viewer == nil || p.opts.Viewer(r).MayBreak) {
		mode = badge("quiet", "may break locks")
	}
	head := element("head", nil,
		voidElement("meta", attrs{"charset", "utf-8"}),
		voidElement("meta", attrs{"name", "viewport", "content", "width=device-width, initial-scale=1"}),
		voidElement("meta", attrs{"name", "color-scheme", "content", "light dark"}),
		element("title", nil, plain(c.title+" · Holdfast")),
		voidElement("link", attrs{"rel", "icon", "href", staticURL("icon.svg"), "type", "image/svg+xml"}),
		voidElement("link", attrs{"rel", "stylesheet", "href", staticURL("page.css")}),
		element("script", attrs{"src", staticURL("page.js"), "defer", ""}))
	header := element("header", attrs{"class", "site"},
		element("a", attrs{"class", "brand", "href", "/"},
			voidElement("img", attrs{"src", staticURL("icon.svg"), "alt", "", "width", "20", "height",
				"20"}), plain("Holdfast")),
		element("nav", attrs{"aria-label", "Parts"}, element("ul", nil,
			part("locks", "/", "Locks"), part("runs", "/runs", "Runs"), part("health", "/health", "Health"))),
		div("place", span("store", foreignText(p.opts.Store)), p.viewerName(r), mode,
			element("span", attrs{"id", "connection", "class", "badge quiet", "role", "status"})))
	main := element("main", attrs{"id", "main", "tabindex", "-1"}, c.fixed,
		element("div", attrs{"id", "live", "data-events", attrIf(c.events != "", c.events),
			"data-now", strconv.FormatInt(c.at.UnixMilli(), 10)}, c.live))
	footer := element("footer", nil,
		element("noscript", nil, plain("Reload the page to see what has changed. ")),
		plain("As of "), element("time", attrs{"id", "as-of", "datetime", c.at.UTC().Format(time.RFC3339)},
			plain(describeTime(c.at))))
	return join("<!DOCTYPE html>\n", element("html", attrs{"lang", "en"}, head, element("body", nil,
		element("a", attrs{"class", "skip", "href", "#main"}, plain("Skip to the content")),
		header, main, footer,
		element("div", attrs{"id", "announcements", "class", "for-readers", "aria-live", "polite"}),
		element("dialog", attrs{"id", "dialog", "aria-labelledby", "dialog-title"}))), "\n")
}

// viewerName says who looks at the page.
func (p *Page) viewerName(r *http.Request) markup {
	if p.opts.Viewer == nil {
		return ""
	}
	return span("viewer", plain("you are "), link("/health", foreignText(p.opts.Viewer(r).Name)))
}

// buildURL is a path with a query of names and values in turn. Values that are empty are left out.
func buildURL(path string, query ...string) string {
	var b strings.Builder
	b.WriteString(path)
	separator := "?"
	for i := 0; i+1 < len(query); i += 2 {
		if query[i+1] != "" {
			b.WriteString(separator + query[i] + "=" + url.QueryEscape(query[i+1]))
			separator = "&"
		}
	}
	return b.String()
}
