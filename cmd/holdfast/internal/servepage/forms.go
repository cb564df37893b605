package servepage

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operator"
)

// csrfCookie is the cookie without which no form is accepted.
const csrfCookie = "holdfast_csrf"

// maxForm is the size of a form, in bytes.
const maxForm = 16 << 10

// sign returns a short signature of a text. Only this server can make it.
func (p *Page) sign(s string) string {
	mac := hmac.New(sha256.New, p.secret)
	mac.Write([]byte(s))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// formToken returns the token for the forms that are sent with a request's cookie, and the cookie if there is none yet.
// Another site can neither read the token nor make the browser send the cookie.
func (p *Page) formToken(r *http.Request) (token string, set *http.Cookie) {
	if c, err := r.Cookie(csrfCookie); err == nil && c.Value != "" {
		return p.sign("form " + c.Value), nil
	}
	set = &http.Cookie{Name: csrfCookie, Value: rand.Text(), Path: "/", HttpOnly: true,
		SameSite: http.SameSiteStrictMode,
		Secure:   r.TLS != nil}
	return p.sign("form " + set.Value), set
}

// checkForm reads the form of a request, and refuses one that was not made by a page of this server.
func (p *Page) checkForm(r *http.Request) error {
	const again = "Go back, reload the page and try again. Nothing was changed."
	if err := p.origin.Check(r); err != nil {
		return newPageError(http.StatusForbidden, "This form was sent by another site. Nothing was changed.")
	}
	r.Body = http.MaxBytesReader(nil, r.Body, maxForm)
	if t := r.Header.Get("Content-Type"); !strings.HasPrefix(t, "application/x-www-form-urlencoded") {
		return newPageError(http.StatusUnsupportedMediaType, "This is not a form of this page. Nothing was changed.")
	}
	if err := r.ParseForm(); err != nil {
		return newPageError(http.StatusBadRequest, "The form cannot be read, or is too large. %s", again)
	}
	c, err := r.Cookie(csrfCookie)
	if err != nil || c.Value == "" {
		return newPageError(http.StatusForbidden, "The browser did not send the cookie of this page. %s", again)
	}
	if !hmac.Equal([]byte(r.PostForm.Get("token")), []byte(p.sign("form "+c.Value))) {
		return newPageError(http.StatusForbidden, "The form is from before the server was started. %s", again)
	}
	return nil
}

// doneURL is the page to see after an action, with a note that says what was done. The note is signed, so that nobody
// can make a link that tells an untruth.
func (p *Page) doneURL(done operator.Action, path string, query ...string) string {
	where := buildURL(path, query...)
	return buildURL(path, append(query, "done", string(done), "by", p.sign("done "+string(done)+" "+where))...)
}

// doneNote is the note of a doneURL, or empty.
func (p *Page) doneNote(r *http.Request, path string, query ...string) markup {
	done := r.URL.Query().Get("done")
	signed := p.sign("done " + done + " " + buildURL(path, query...))
	if done == "" || !hmac.Equal([]byte(r.URL.Query().Get("by")), []byte(signed)) {
		return ""
	}
	return element("p", attrs{"class", "done", "role", "status"}, plain(doneTexts[operator.Action(done)]))
}

// doneTexts say what was done.
var doneTexts = map[operator.Action]string{
	operator.RequestRelease: "The holder is asked to release the lock. It learns of the request at its next renewal.",
	operator.Break: "The claim is broken. Its holder learns that at its next renewal; otherwise the lock passes on when " +
		"its TTL has passed.",
	operator.BreakForce: "The claim was removed at once. Its old holder may still be working.",
	operator.Retry:      "One more run of the key can begin at once.",
	operator.Forget:     "The history of the key is removed. Its next run is attempt 1.",
}

// confirmation is a form that carries out an action, and says what will happen.
type confirmation struct {
	title    string
	happens  []markup // paragraphs
	post     string   // the URL of the form. Names are in it, because browsers change line breaks in fields
	button   string
	danger   string // not empty: a box must be ticked with this text
	reason   bool   // there is a field for a reason
	cancelTo string
}

// form is the form with the token.
func (c confirmation) form(token string) markup {
	fields := []markup{voidElement("input", attrs{"type", "hidden", "name", "token", "value", token})}
	if c.reason {
		fields = append(fields, element("label", attrs{"class", "field"},
			plain("Reason, for the holder and the audit log"),
			voidElement("input", attrs{"type", "text", "name", "reason", "maxlength", "120", "autocomplete", "off",
				"placeholder", "such as a ticket; may be empty"})))
	}
	if c.danger != "" {
		fields = append(fields, element("label", attrs{"class", "tick-box"},
			voidElement("input", attrs{"type", "checkbox", "name", "sure", "value", "yes", "required",
				""}), plain(c.danger)))
	}
	class := "button"
	if c.danger != "" {
		class = "button danger"
	}
	fields = append(fields, div("buttons",
		element("button", attrs{"type", "submit", "class", class}, plain(c.button)),
		element("a", attrs{"class", "button quiet", "href", c.cancelTo, "data-cancel", ""}, plain("Cancel"))))
	return element("section", attrs{"id", "confirmation", "class", "confirmation"},
		element("h1", attrs{"id", "dialog-title", "tabindex", "-1"}, plain(c.title)), join(c.happens...),
		element("form", attrs{"method", "post", "action", c.post}, fields...))
}
