package serve

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/acquire"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operator"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
	"github.com/holdfast-go/holdfast/driver"
)

// beginBody is the body of begin.
type beginBody struct {
	TTL         *int64 `json:"ttl_ms"`
	Wait        int64  `json:"wait_ms"`
	Owner       string `json:"owner"`
	Note        string `json:"note"`
	Fingerprint string `json:"fingerprint"`
	MaxAttempts int64  `json:"max_attempts"`
	Pause       int64  `json:"pause_ms"`
	KeepRuns    int64  `json:"keep_runs"`
	Keep        int64  `json:"keep_ms"`
}

// begunView is the answer to begin.
type begunView struct {
	Run       string `json:"run"`
	Ledger    string `json:"ledger"`
	Key       string `json:"key"`
	Attempt   int64  `json:"attempt"`
	Token     int64  `json:"token"`
	ID        string `json:"id"`
	TTL       int64  `json:"ttl_ms"`
	Remaining int64  `json:"remaining_ms"`
}

// beatView is the answer to a beat.
type beatView struct {
	Run       string `json:"run"`
	Remaining int64  `json:"remaining_ms"`
}

// endedView is the answer to succeed and fail.
type endedView struct {
	Ledger  string            `json:"ledger"`
	Key     string            `json:"key"`
	Attempt int64             `json:"attempt"`
	State   holdfast.RunState `json:"state"`
}

// keyView is the answer to retry and forget.
type keyView struct {
	Ledger string `json:"ledger"`
	Key    string `json:"key"`
}

// runList is the answer to a listing of runs.
type runList struct {
	Ledger     string       `json:"ledger"`
	Runs       []shown.Run  `json:"runs"`
	Truncated  bool         `json:"truncated"`
	Unreadable []unreadable `json:"unreadable"`
}

// history is the answer to a request for the runs of a key.
type history struct {
	Ledger  string      `json:"ledger"`
	Key     string      `json:"key"`
	Runs    []shown.Run `json:"runs"`
	Earlier bool        `json:"earlier"`
}

// keyOf is the ledger and the key in the path, and the name by which rights on them are given.
func keyOf(r *http.Request) (ledger, key, name string) {
	ledger, key = r.PathValue("ledger"), nameOf(r, "key")
	return ledger, key, ledger + "/" + key
}

// listRuns answers with the last run of each key that the caller may see. A key that cannot be read is listed
// apart, so that it hides no other.
func (s *Server) listRuns(w http.ResponseWriter, r *http.Request) error {
	limit, err := queryNumber(r, "limit", 1000, 1, 10_000)
	if err != nil {
		return err
	}
	var states []holdfast.RunState
	for _, state := range r.URL.Query()["state"] {
		known := []holdfast.RunState{holdfast.RunStarted, holdfast.RunSucceeded, holdfast.RunFailed, holdfast.RunAbandoned}
		if !slices.Contains(known, holdfast.RunState(state)) {
			return newProblem(codeInvalid, "the state must be started, succeeded, failed or abandoned, not %q", state)
		}
		states = append(states, holdfast.RunState(state))
	}
	ctx, cancel := context.WithTimeout(r.Context(), listTimeout)
	defer cancel()
	ledger := r.PathValue("ledger")
	list := runList{Ledger: ledger, Runs: []shown.Run{}, Unreadable: []unreadable{}}
	for run, err := range s.client.Ledger(ledger, nil).List(ctx, r.URL.Query().Get("prefix"), states...) {
		switch {
		case err != nil && run.Key == "":
			return err
		case !callerOf(r).rightsOn(ledger + "/" + run.Key).See:
		case len(list.Runs)+len(list.Unreadable) == limit:
			list.Truncated = true
		case err != nil:
			p := problemOf(err)
			list.Unreadable = append(list.Unreadable, unreadable{Key: run.Key, Code: p.Code, Message: p.Error()})
		default:
			list.Runs = append(list.Runs, shown.NewRun(run, len(run.Result)))
		}
		if list.Truncated {
			break
		}
	}
	slices.SortFunc(list.Runs, func(a, b shown.Run) int { return strings.Compare(a.Key, b.Key) })
	return writeJSON(w, list)
}

// showRuns answers with the last runs of one key.
func (s *Server) showRuns(w http.ResponseWriter, r *http.Request) error {
	ledger, key, _ := keyOf(r)
	limit, err := queryNumber(r, "limit", 1000, 1, 10_000)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeTimeout)
	defer cancel()
	runs, err := s.client.Ledger(ledger, nil).LastRuns(ctx, key, limit)
	if err != nil {
		return err
	}
	v := history{Ledger: ledger, Key: key, Runs: []shown.Run{}, Earlier: len(runs) > 0 && runs[0].Attempt > 1}
	for _, run := range runs {
		v.Runs = append(v.Runs, shown.NewRunWithResult(run))
	}
	return writeJSON(w, v)
}

// ledgerFor checks the body of begin.
func (s *Server) ledgerFor(r *http.Request, name string, b *beginBody) (*holdfast.Ledger, time.Duration, error) {
	o := holdfast.LedgerOptions{TTL: holdfast.DefaultTTL, Meta: b.Note, Owner: b.Owner}
	if o.Owner == "" {
		o.Owner = defaultOwner(r)
	}
	if b.MaxAttempts < 0 || b.KeepRuns < 0 || b.MaxAttempts > maxMillis || b.KeepRuns > maxMillis {
		return nil, 0, newProblem(codeInvalid, "max_attempts and keep_runs must be 0 or more")
	}
	o.MaxAttempts, o.KeepRuns = int(b.MaxAttempts), int(b.KeepRuns)
	var err error
	for field, value := range map[string]struct {
		from int64
		to   *time.Duration
	}{"pause_ms": {b.Pause, &o.Pause}, "keep_ms": {b.Keep, &o.KeepFor}} {
		if *value.to, err = milliseconds(field, value.from); err != nil {
			return nil, 0, err
		}
	}
	info := s.client.Info()
	o.TTL = min(max(o.TTL, info.MinTTL), info.MaxTTL)
	if b.TTL != nil {
		if o.TTL, err = milliseconds("ttl_ms", *b.TTL); err != nil {
			return nil, 0, err
		}
		if o.TTL == 0 {
			return nil, 0, newProblem(codeInvalid, "ttl_ms must not be 0")
		}
	}
	return s.client.Ledger(name, &o), o.TTL, nil
}

// beginRun begins a run that the caller then ends by succeed or fail. A caller that loses its right during the
// wait gets no run.
func (s *Server) beginRun(w http.ResponseWriter, r *http.Request) error {
	var body beginBody
	if err := cmp.Or(refuseKey(r), readBody(r, &body)); err != nil {
		return err
	}
	ledgerName, key, _ := keyOf(r)
	ledger, ttl, err := s.ledgerFor(r, ledgerName, &body)
	if err != nil {
		return err
	}
	wait, err := milliseconds("wait_ms", body.Wait)
	if err != nil {
		return err
	}
	if err := s.enterStream(); err != nil {
		return err
	}
	defer s.streams.leave()
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer s.whenClosing(func() { cancel(errShuttingDown) })()
	defer s.whenRevoked(r, func(err error) { cancel(err) })()
	limited, cancelLimit := context.WithTimeoutCause(ctx, storeTimeout+wait, errWaitLimit)
	defer cancelLimit()
	run, err := beginWithin(limited, ledger, key, body.Fingerprint, wait)
	if err != nil {
		return err
	}
	o := s.runs.add(r, ledgerName, run, ttl)
	_, err = s.checkRight(r) // it may be lost during the wait
	if err == nil {
		err = r.Context().Err() // an answer to a client that has gone is lost, often without an error
	}
	if err == nil && s.abandoned.Load() {
		err = errShuttingDown
	}
	if err != nil {
		if o.startEnd() { // otherwise the shutdown ends it
			_ = s.endRun(o, run.Withdraw)
		}
		return err
	}
	if err := writeJSON(w, begunView{Run: o.id, Ledger: ledgerName, Key: key, Attempt: run.Attempt(), Token: run.Token(),
		ID: run.ID(), TTL: shown.Millis(ttl), Remaining: shown.Millis(o.remaining())}); err != nil {
		// The client does not know that it has the run.
		o.startEnd()
		_ = s.endRun(o, run.Withdraw)
	}
	return nil
}

// beginWithin begins a run. It waits for the end of another one for as long as wait, and then says which one it is.
func beginWithin(ctx context.Context, ledger *holdfast.Ledger, key, fingerprint string, wait time.Duration) (
	*holdfast.Run, error) {
	if wait > 0 {
		limited, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		run, err := acquire.Begin(limited, ledger, key, &holdfast.RunOptions{Fingerprint: fingerprint, Wait: true})
		if err == nil || ctx.Err() != nil || limited.Err() == nil {
			return run, err
		}
	}
	return ledger.Begin(ctx, key, &holdfast.RunOptions{Fingerprint: fingerprint})
}

// remaining is for how long the run is valid without another beat.
func (o *openRun) remaining() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return min(o.run.Remaining(), o.ttl-driver.Margin(o.ttl)-time.Since(o.beatAt))
}

// beatRun says that the worker of a run lives, and answers for how long the run is valid.
func (s *Server) beatRun(w http.ResponseWriter, r *http.Request) error {
	if err := readBody(r, nil); err != nil {
		return err
	}
	o, err := s.runs.find(r)
	if err != nil {
		return err
	}
	if err := o.run.Err(); err != nil {
		return err
	}
	if !o.beat() {
		return newProblem(codeReleased, "the run is being ended")
	}
	return writeJSON(w, beatView{Run: o.id, Remaining: shown.Millis(o.remaining())})
}

// succeedRun ends a run with its result, which is text or bytes in base64.
func (s *Server) succeedRun(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		Result     *string `json:"result"`
		ResultData *string `json:"result_base64"`
	}
	if err := readBody(r, &body); err != nil {
		return err
	}
	var result []byte
	switch {
	case body.Result != nil && body.ResultData != nil:
		return newProblem(codeInvalid, "give result or result_base64, not both")
	case body.Result != nil:
		result = []byte(*body.Result)
	case body.ResultData != nil:
		var err error
		if result, err = base64.StdEncoding.DecodeString(*body.ResultData); err != nil {
			return newProblem(codeInvalid, "result_base64 is not in base64")
		}
	}
	return s.finishRun(w, r, holdfast.RunSucceeded,
		func(ctx context.Context, run *holdfast.Run) error { return run.Succeed(ctx, result) })
}

// failRun ends a run with the worker's error.
func (s *Server) failRun(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		Error string `json:"error"`
	}
	if err := readBody(r, &body); err != nil {
		return err
	}
	if body.Error == "" {
		body.Error = "the worker reported a failure"
	}
	return s.finishRun(w, r, holdfast.RunFailed,
		func(ctx context.Context, run *holdfast.Run) error { return run.Fail(ctx, errors.New(body.Error)) })
}

// finishRun ends a run for its worker.
func (s *Server) finishRun(w http.ResponseWriter, r *http.Request, state holdfast.RunState,
	report func(context.Context, *holdfast.Run) error) error {
	o, err := s.runs.find(r)
	if err != nil {
		return err
	}
	if !o.startEnd() {
		return newProblem(codeReleased, "the run is being ended")
	}
	err = s.endRun(o, func(ctx context.Context) error { return report(ctx, o.run) })
	if err != nil {
		return err
	}
	return writeJSON(w, endedView{Ledger: o.ledger, Key: o.run.Key(), Attempt: o.run.Attempt(), State: state})
}

var errAbandoned = errors.New("the program that ran it has ended")

// failAllRuns ends the runs of clients that do not work any more.
func (s *Server) failAllRuns() {
	var ends sync.WaitGroup
	for _, o := range s.runs.all() {
		if o.startEnd() { // otherwise a request ends it
			ends.Go(func() {
				_ = s.endRun(o, func(ctx context.Context) error { return o.run.Fail(ctx, errAbandoned) })
			})
		}
	}
	ends.Wait()
}

// endRun reports the end of a run. After a wrong request the run goes on.
func (s *Server) endRun(o *openRun, report func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	err := report(ctx)
	if errors.Is(err, holdfast.ErrInvalid) {
		o.undoEnd()
		return err
	}
	o.timer.Stop()
	s.runs.remove(o)
	return err
}

func (s *Server) retryKey(w http.ResponseWriter, r *http.Request) error {
	return s.changeKey(w, r, operator.Retry)
}

func (s *Server) forgetKey(w http.ResponseWriter, r *http.Request) error {
	return s.changeKey(w, r, operator.Forget)
}

// changeKey writes the audit log, and acts on a key.
func (s *Server) changeKey(w http.ResponseWriter, r *http.Request, action operator.Action) error {
	if err := readBody(r, nil); err != nil {
		return err
	}
	ledger, key, _ := keyOf(r)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), storeTimeout) // as in changeClaim
	defer cancel()
	err := s.audited(r, operator.Entry{Action: action, Ledger: ledger, Key: key}, func() error {
		return operator.ActOnRun(ctx, s.client.Ledger(ledger, nil), action, key)
	})
	if err != nil {
		return err
	}
	return writeJSON(w, keyView{Ledger: ledger, Key: key})
}
