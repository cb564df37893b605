package serve

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// healthView is the answer to healthz and readyz.
type healthView struct {
	Status string `json:"status"`
}

func (s *Server) showHealth(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, healthView{"ok"})
}

// readiness keeps the last answer of the store for a moment, so that probes cost it nothing.
type readiness struct {
	mu  sync.Mutex
	at  time.Time
	err error
}

const (
	readyLock    = "holdfast-readyz" // is read and never held
	readyPause   = time.Second
	readyTimeout = 2 * time.Second
)

// showReadiness answers 200 if new requests would be served: the server is not closing, and the store answers.
func (s *Server) showReadiness(w http.ResponseWriter, r *http.Request) error {
	if s.isClosing() {
		return errShuttingDown
	}
	if err := s.checkStore(); err != nil {
		return newProblem(codeStoreError, "the store does not answer") // who asks may have no right to know more
	}
	return writeJSON(w, healthView{"ok"})
}

// checkStore reads a lock that nobody holds.
func (s *Server) checkStore() error {
	s.ready.mu.Lock()
	defer s.ready.mu.Unlock()
	if time.Since(s.ready.at) < readyPause {
		return s.ready.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	_, s.ready.err = s.client.Inspect(ctx, readyLock)
	s.ready.at = time.Now()
	return s.ready.err
}
