package servepage

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// browser is a headless Chromium with one page, driven through its debugging pipe.
type browser struct {
	*testing.T
	in      io.WriteCloser
	session string // of the page

	mu      sync.Mutex
	next    int
	waiting map[int]chan message
	urls    []string // of all requests
	logged  []string // what the browser has complained of
	gone    error
}

// browserTimeout is how long the browser may take for an answer, and a page to become what a test waits for.
const browserTimeout = 2 * time.Minute

// message is what the browser sends: the answer to a call, or an event.
type message struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// findUpward returns the path of a file below the nearest directory that has it, from here upward; or empty.
func findUpward(t *testing.T, file string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if at := filepath.Join(dir, file); exists(at) {
			return at
		}
		if dir == filepath.Dir(dir) {
			return ""
		}
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// startBrowser starts Chromium. It can reach no other machine.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("needs chromium: run scripts/setup servers")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, "--headless=new", "--remote-debugging-pipe", "--no-sandbox",
		"--disable-gpu",
		"--disable-dev-shm-usage", "--no-first-run", "--disable-extensions", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--no-proxy-server", "--hide-scrollbars",
		"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--user-data-dir="+t.TempDir(), "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that its children can be ended with it
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{inRead, outWrite}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	inRead.Close()
	outWrite.Close()
	b := &browser{T: t, in: inWrite, waiting: map[int]chan message{}}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b.readMessages(outRead)
	}()
	t.Cleanup(func() {
		inWrite.Close() // ends the browser
		timer := time.AfterFunc(time.Minute, cancel)
		_ = cmd.Wait()
		timer.Stop()
		cancel()
		endGroup(t, cmd.Process.Pid) // children write to the directories, which are removed next
		outRead.Close()
		<-read
	})
	var target struct{ TargetID, SessionID string }
	b.call("Target.createTarget", fields{"url": "about:blank"}, &target)
	b.call("Target.attachToTarget", fields{"targetId": target.TargetID, "flatten": true}, &target)
	b.session = target.SessionID
	for _, domain := range []string{"Page", "Runtime", "Network", "Log"} {
		b.call(domain+".enable", fields{}, nil)
	}
	return b
}

// endGroup kills the processes of a group, and waits until none of them runs.
func endGroup(t *testing.T, group int) {
	t.Helper()
	_ = syscall.Kill(-group, syscall.SIGKILL)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if !isGroupRunning(group) {
			return
		}
	}
	t.Error("a process of the browser does not end")
}

// isGroupRunning reports whether a group has a process that is no zombie.
func isGroupRunning(group int) bool {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		stat, _ := os.ReadFile(file)
		words := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // the state, the parent, the group
		if len(words) > 2 && words[0] != "Z" && words[2] == strconv.Itoa(group) {
			return true
		}
	}
	return false
}

type fields map[string]any

// readMessages hands each answer to its caller, and keeps what the browser tells of requests.
func (b *browser) readMessages(r io.Reader) {
	in := bufio.NewReader(r)
	for {
		data, err := in.ReadBytes(0)
		if err != nil {
			b.mu.Lock()
			b.gone = fmt.Errorf("the browser has ended: %w", err)
			for id, w := range b.waiting {
				close(w)
				delete(b.waiting, id)
			}
			b.mu.Unlock()
			return
		}
		var m message
		if json.Unmarshal(data[:len(data)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		if w := b.waiting[m.ID]; m.ID != 0 && w != nil {
			w <- m
			delete(b.waiting, m.ID)
		}
		b.keepEvent(m)
		b.mu.Unlock()
	}
}

// keepEvent keeps requests and complaints. It is called with b.mu held.
func (b *browser) keepEvent(m message) {
	switch m.Method {
	case "Network.requestWillBeSent":
		var p struct{ Request struct{ URL string } }
		_ = json.Unmarshal(m.Params, &p)
		b.urls = append(b.urls, p.Request.URL)
	case "Log.entryAdded", "Runtime.exceptionThrown":
		b.logged = append(b.logged, string(m.Params))
	}
}

// call calls a method of the browser, which must succeed.
func (b *browser) call(method string, params fields, result any) {
	b.Helper()
	if err := b.tryCall(method, params, result); err != nil {
		b.Fatal(err)
	}
}

// tryCall calls a method of the browser, and returns the error that it answers.
func (b *browser) tryCall(method string, params fields, result any) error {
	b.Helper()
	answer := make(chan message, 1)
	b.mu.Lock()
	b.next++
	id := b.next
	b.waiting[id] = answer
	err := b.gone
	b.mu.Unlock()
	if err != nil {
		b.Fatal(err)
	}
	data, err := json.Marshal(map[string]any{"id": id, "method": method, "params": params, "sessionId": b.session})
	if b.session == "" {
		data, err = json.Marshal(map[string]any{"id": id, "method": method, "params": params})
	}
	if err != nil {
		b.Fatal(err)
	}
	if _, err := b.in.Write(append(data, 0)); err != nil {
		b.Fatal(err)
	}
	var m message
	var ok bool
	select {
	case m, ok = <-answer:
	case <-time.After(browserTimeout):
		b.Fatalf("%s: the browser does not answer", method)
	}
	switch {
	case !ok:
		b.Fatalf("%s: the browser has ended", method)
	case m.Error != nil:
		return fmt.Errorf("%s: %s", method, m.Error.Message)
	case result != nil:
		if err := json.Unmarshal(m.Result, result); err != nil {
			b.Fatal(err)
		}
	}
	return nil
}

// evaluate runs JavaScript in the page, waits for its promise, and stores its value.
func (b *browser) evaluate(script string, value any) {
	b.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	b.call("Runtime.evaluate", fields{"expression": script, "awaitPromise": true, "returnByValue": true}, &r)
	if r.ExceptionDetails != nil {
		b.Fatalf("%s: %s %s", script, r.ExceptionDetails.Text, r.ExceptionDetails.Exception.Description)
	}
	if value != nil {
		if err := json.Unmarshal(r.Result.Value, value); err != nil {
			b.Fatalf("%s: %v", script, err)
		}
	}
}

// await waits until a condition in JavaScript holds. The page may be loaded again meanwhile.
func (b *browser) await(condition string) {
	b.Helper()
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		var r struct {
			Result struct{ Value any }
		}
		// An error says that the page went away while it was asked.
		err := b.tryCall("Runtime.evaluate", fields{"expression": "!!(" + condition + ")", "returnByValue": true}, &r)
		if holds, _ := r.Result.Value.(bool); err == nil && holds {
			return
		}
		if time.Since(start) > browserTimeout {
			var text string
			b.evaluate("location.href + '\\n' + document.body.innerText", &text)
			b.Fatalf("not in time: %s (%v)\n%s\n%s", condition, err, text, strings.Join(b.complaints(), "\n"))
		}
	}
}

// open opens a URL and waits until it is loaded.
func (b *browser) open(url string) {
	b.Helper()
	b.call("Page.navigate", fields{"url": url}, nil)
	b.await(fmt.Sprintf("location.href === %q && document.readyState === 'complete'", url))
}

// press presses a key: its name as in KeyboardEvent.key, and its code on Windows.
func (b *browser) press(key string, code int) {
	b.Helper()
	text := ""
	if key == "Enter" {
		text = "\r"
	}
	for _, kind := range []string{"keyDown", "keyUp"} {
		b.call("Input.dispatchKeyEvent", fields{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code,
			"text": text}, nil)
		text = ""
	}
}

// click clicks at the middle of the element that a selector finds, as a mouse does.
func (b *browser) click(selector string) {
	b.Helper()
	var at struct{ X, Y float64 }
	b.evaluate(fmt.Sprintf(`(() => { const e = document.querySelector(%q); e.scrollIntoView({block: "center"});
		const r = e.getClientRects()[0]; return {X: r.x + r.width / 2, Y: r.y + r.height / 2} })()`, selector), &at)
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		b.call("Input.dispatchMouseEvent",
			fields{"type": kind, "x": at.X, "y": at.Y, "button": "left", "clickCount": 1}, nil)
	}
}

// setView sets the size of the window in pixels, and the color scheme.
func (b *browser) setView(width, height int, scheme string) {
	b.Helper()
	b.call("Emulation.setDeviceMetricsOverride", fields{"width": width, "height": height, "deviceScaleFactor": 1,
		"mobile": width < 600}, nil)
	b.call("Emulation.setEmulatedMedia",
		fields{"features": []fields{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// screenshot writes the window to a file.
func (b *browser) screenshot(file string) {
	b.Helper()
	var r struct{ Data string }
	b.call("Page.captureScreenshot", fields{"format": "png"}, &r)
	data, err := base64.StdEncoding.DecodeString(r.Data)
	if err == nil {
		err = os.WriteFile(file, data, 0o644)
	}
	if err != nil {
		b.Fatal(err)
	}
}

func (b *browser) complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.logged)
}

// requests are the URLs of all requests that were made.
func (b *browser) requests() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.urls)
}

// checkAccess fails the test for each finding of axe on the page, with what it concerns.
func (b *browser) checkAccess(axe, where string) {
	b.Helper()
	var findings []string
	var loaded bool
	if b.evaluate("'axe' in window", &loaded); !loaded {
		b.evaluate(axe, nil)
	}
	b.evaluate(`axe.run(document).then(r => r.passes.length < 10 ? ["only " + r.passes.length + " rules were tried"] :
		r.violations.map(v => v.id + ": " + v.help + ": " + v.nodes.map(n => n.target + " " + n.failureSummary).join("; ")))`,
		&findings)
	for _, f := range findings {
		b.Errorf("%s: %s", where, f)
	}
}
