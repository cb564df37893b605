package clients

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"sync"
	"time"
)

// script plays the part of holdfast serve, and answers as the steps of a case say: so a case can have an answer come
// late, or between two calls. An answer belongs to the last part of a path, such as check.
type script struct {
	mu      sync.Mutex
	answers map[string]*scripted
}

// scripted is what is answered, and what was seen.
type scripted struct {
	status int
	body   any
	late   time.Duration
	gate   chan struct{} // the answer is held back until it is closed; nil: it is not
	called chan struct{} // is closed at the first call
	ended  chan struct{} // is closed when a stream has ended
}

// usualAnswer has what all answers need. Holds, handles and runs are the same ones in each.
var usualAnswer = map[string]any{
	"event": "acquired", "lock": "job", "hold": "h", "handle": "h", "kind": "mutex", "owner": "a",
	"ledger": "mail", "key": "k", "run": "r", "attempt": 1, "token": 1, "ttl_ms": 30000, "remaining_ms": 29000,
}

// startScript starts a script, which the agents call.
func (r *runner) startScript() {
	r.script = &script{answers: map[string]*scripted{}}
	server := httptest.NewServer(r.script)
	r.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	r.via = server.URL
}

// at is the answer to calls of a verb.
func (s *script) at(verb string) *scripted {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.answers[verb]
	if a == nil {
		a = &scripted{status: http.StatusOK, body: usualAnswer, called: make(chan struct{}), ended: make(chan struct{})}
		s.answers[verb] = a
	}
	return a
}

// set changes the answer to calls of a verb.
func (s *script) set(verb string, change func(a *scripted)) {
	a := s.at(verb)
	s.mu.Lock()
	defer s.mu.Unlock()
	change(a)
}

// ServeHTTP answers a call. A stream goes on until its client ends it.
func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	verb := path.Base(r.URL.Path)
	a := s.at(verb)
	s.mu.Lock()
	status, body, late, gate := a.status, a.body, a.late, a.gate
	closeOnce(a.called)
	s.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-r.Context().Done():
		}
	}
	time.Sleep(late)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
	if verb == "hold" && status == http.StatusOK {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		s.mu.Lock()
		defer s.mu.Unlock()
		closeOnce(a.ended)
	}
}

func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// doScript does a step of a case with a script. It returns false if that is no such step.
func (r *runner) doScript(s step) bool {
	r.Helper()
	verb, _ := s.With["to"].(string)
	switch s.Do {
	case "answer":
		r.script.set(verb, func(a *scripted) {
			if status, ok := s.With["status"].(int); ok {
				a.status = status
			}
			if body := s.With["body"]; body != nil {
				a.body = body
			}
			late, _ := s.With["late_ms"].(int)
			a.late = time.Duration(late) * time.Millisecond
		})
	case "hold-back":
		r.script.set(verb, func(a *scripted) { a.gate = make(chan struct{}) })
	case "let-go":
		r.script.set(verb, func(a *scripted) { close(a.gate) })
	case "await-call":
		r.awaitClosed(s, r.script.at(verb).called)
	case "await-end":
		r.awaitClosed(s, r.script.at(verb).ended)
	default:
		return false
	}
	return true
}

func (r *runner) awaitClosed(s step, c <-chan struct{}) {
	r.Helper()
	select {
	case <-c:
	case <-time.After(stepLimit):
		r.fail("%s does not happen", s.Do)
	}
}
