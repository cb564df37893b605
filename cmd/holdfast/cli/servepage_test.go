package cli

import (
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestServePage: an operator breaks a lock on the page of a server, by links and forms alone: the holder learns it, the
// audit log has it, and the server ends although a page is open.
func TestServePage(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	s := w.startServe("--allow-break", "--audit-log", "audit")
	holder, _ := w.startHolder("deploy/a b<")
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	s.client.Jar = jar
	read := func(response *http.Response, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		data, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%d %v %s", response.StatusCode, err, data)
		}
		return string(data)
	}
	find := func(page, pattern string) string {
		t.Helper()
		m := regexp.MustCompile(pattern).FindStringSubmatch(page)
		if m == nil {
			t.Fatalf("there is no %s in %s", pattern, page)
		}
		return html.UnescapeString(m[1])
	}
	list := read(s.client.Get(s.url + "/"))
	if !strings.Contains(list, "deploy/a b&lt;") || strings.Contains(list, "a b<") {
		t.Error(list)
	}
	events, err := s.client.Get(s.url + "/events?of=list")
	if err != nil || events.StatusCode != http.StatusOK {
		t.Fatal(events, err)
	}
	defer events.Body.Close()
	lock := read(s.client.Get(s.url + find(list, `href="(/locks/show[^"]*)"`)))
	confirm := read(s.client.Get(s.url + find(lock, `href="(/locks/confirm[^"]*action=break)"`)))
	done := read(s.client.PostForm(s.url+find(confirm, `action="(/locks/act[^"]*)"`),
		url.Values{"token": {find(confirm, `name="token" value="([^"]*)"`)}, "reason": {"INC-1"}}))
	if !strings.Contains(done, "The claim is broken.") {
		t.Error(done)
	}
	holder.wait().check(t, 76, "INC-1")
	var outcomes []string
	for line := range wholeLines(w.readFile(w.filePath("audit"))) {
		if checkRecord(t, line) != recordAudit || !strings.Contains(line, `"reason":"INC-1"`) {
			t.Error(line)
		}
		outcomes = append(outcomes, find(line, `"outcome":"([a-z]*)"`))
	}
	if !slices.Equal(outcomes, []string{"started", "done"}) {
		t.Errorf("the audit log has the outcomes %q", outcomes)
	}
	s.signal(unix.SIGTERM)
	if _, err := io.Copy(io.Discard, events.Body); err != nil {
		t.Error(err)
	}
	s.wait().check(t, 0)
}
