package record

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// runLogJSON is a RunLog as a table keeps it.
type runLogJSON struct {
	List       []runJSON `json:"list"`
	Pages      int64     `json:"pages,omitempty"`
	Dropped    int64     `json:"dropped,omitempty"`
	RetryAfter int64     `json:"retry_after,omitempty"`
	KeepFor    int64     `json:"keep_ms,omitempty"`
	ForgetAt   int64     `json:"forget_us,omitempty"`
}

// runJSON is a driver.Run.
type runJSON struct {
	Attempt     int64           `json:"attempt"`
	State       driver.RunState `json:"state"`
	ID          string          `json:"id"`
	Token       int64           `json:"token"`
	Owner       string          `json:"owner,omitempty"`
	Meta        string          `json:"meta,omitempty"`
	Fingerprint string          `json:"fingerprint,omitempty"`
	StartedAt   int64           `json:"started_us"`
	EndedAt     int64           `json:"ended_us,omitempty"`
	Error       string          `json:"error,omitempty"`
	Result      []byte          `json:"result,omitempty"`
	LateReport  driver.RunState `json:"late_report,omitempty"`
}

// encodeRuns is the stored form of a ledger's runs. A lock has none.
func encodeRuns(l *RunLog) *runLogJSON {
	if l == nil {
		return nil
	}
	w := &runLogJSON{
		Pages: l.Pages, Dropped: l.Dropped, RetryAfter: l.RetryAfter,
		KeepFor: l.KeepFor.Milliseconds(), ForgetAt: l.ForgetAt,
	}
	for _, r := range l.Runs {
		w.List = append(w.List, encodeRun(r))
	}
	return w
}

// encodeRun is the stored form of one run. A run that goes on has no end time.
func encodeRun(r driver.Run) runJSON {
	j := runJSON{
		Attempt: r.Attempt, State: r.State, ID: r.ID, Token: r.Token, Owner: r.Owner, Meta: r.Meta,
		Fingerprint: r.Fingerprint, StartedAt: r.StartedAt.UnixMicro(), Error: r.Error, Result: r.Result,
		LateReport: r.LateReport,
	}
	if !r.EndedAt.IsZero() {
		j.EndedAt = r.EndedAt.UnixMicro()
	}
	return j
}

// decodeRuns reads what encodeRuns has written.
func decodeRuns(w *runLogJSON) *RunLog {
	if w == nil {
		return nil
	}
	l := &RunLog{
		Pages: w.Pages, Dropped: w.Dropped, RetryAfter: w.RetryAfter,
		KeepFor: millisToDuration(w.KeepFor), ForgetAt: w.ForgetAt,
	}
	for _, j := range w.List {
		r := driver.Run{
			Attempt: j.Attempt, State: j.State, ID: j.ID, Token: j.Token, Owner: j.Owner, Meta: j.Meta,
			Fingerprint: j.Fingerprint, StartedAt: time.UnixMicro(j.StartedAt), Error: j.Error, Result: j.Result,
			LateReport: j.LateReport,
		}
		if j.EndedAt != 0 {
			r.EndedAt = time.UnixMicro(j.EndedAt)
		}
		l.Runs = append(l.Runs, r)
	}
	return l
}
