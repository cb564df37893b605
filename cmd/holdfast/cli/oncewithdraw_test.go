//go:build linux

package cli

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// signalingStore is a store on files at which a signal arrives while a run begins: when the run is in the store, and
// before its program knows of it.
type signalingStore struct{ driver.Store }

func (s *signalingStore) OpenLedger(ctx context.Context) (driver.Ledger, error) {
	l, err := s.Store.OpenLedger(ctx)
	return &signalingLedger{l}, err
}

type signalingLedger struct{ driver.Ledger }

// signalingQueue has no buffer: a signal that was sent has been received.
var signalingQueue = &signalQueue{ch: make(chan os.Signal)}

// registerSignaling makes such stores known by their URL.
var registerSignaling = sync.OnceFunc(func() {
	driver.Register("signaling", func(ctx context.Context, u *url.URL) (driver.Store, error) {
		s, err := driver.Open(ctx, "file://"+u.Path)
		return &signalingStore{s}, err
	}, nil)
})

func (l *signalingLedger) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	g, err := l.Ledger.Acquire(ctx, c)
	if err == nil {
		signalingQueue.ch <- unix.SIGTERM
	}
	return g, err
}

// TestOnceSignalAfterBegin: a signal that comes when the run has begun, and before its command is started, withdraws the
// run. The key keeps all of its attempts.
func TestOnceSignalAfterBegin(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	registerSignaling()
	job := w.newJob("k", strings.Replace(w.store, "file:", "signaling:", 1))
	events, err := openEventFile(filepath.Join(w.dir, "events"))
	if err != nil {
		t.Fatal(err)
	}
	client, run, err := job.beginUntilSignal(&ledgerStore{}, signalingQueue, events)
	if run != nil || err == nil || !strings.Contains(err.Error(), "ended by SIGTERM before a run of") {
		t.Errorf("a run that a signal has ended: %v, %v", run, err)
	}
	closeClient(client)
	events.close()
	if text := w.readFile(w.filePath("events")); !strings.Contains(text, `"event":"run_failed"`) {
		t.Errorf("the events are %s", text)
	}
	w.checkStates("k")
	w.runProgram("once", "--attempts", "1", "k", "true").check(t, 0)
	w.checkStates("k", holdfast.RunSucceeded)
}

// TestOnceWithoutGuard: a run whose command cannot be started, because this machine starts no guard, is withdrawn, and
// one whose command the system refuses has failed.
func TestOnceWithoutGuard(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	for reason, want := range map[error][]holdfast.RunState{
		&guardStartError{unix.EAGAIN}: nil,
		unix.ENOEXEC:                  {holdfast.RunFailed},
	} {
		job := w.newJob(reason.Error(), w.store)
		client, run, err := job.openAndBegin(t.Context(), &ledgerStore{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		output, err := newOutputCopy(0)
		if err != nil {
			t.Fatal(err)
		}
		output.start()
		if err := job.reportOutcome(run, &runResult{startError: reason}, output, nil); err == nil {
			t.Errorf("a command that was not started, because of %v, has succeeded", reason)
		}
		output.finish()
		closeClient(client)
		w.checkStates(job.key, want...)
	}
}

// newJob is a job of one attempt.
func (w *workspace) newJob(key, store string) *onceJob {
	return &onceJob{key: key, store: store, ledger: defaultLedger, argv: []string{"true"},
		opts: holdfast.LedgerOptions{MaxAttempts: 1}, waitsForSlot: make(chan struct{})}
}
