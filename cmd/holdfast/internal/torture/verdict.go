package torture

import "time"

// Promise is one thing that the judge checks.
type Promise struct {
	Code string `json:"code"`
	Text string `json:"promise"`
}

// promises are all that is checked, in the order of the report.
var promises = []Promise{
	{"overlap", "no two holders believe at the same time that an exclusive lock is theirs"},
	{"limit", "the holders of a semaphore never take more than its limit"},
	{"tokens", "fencing tokens rise from grant to grant"},
	{"fence", "the fenced resource accepts the writes of the holder, and no stale ones"},
	{"twice", "a key of a run ledger succeeds once"},
	{"unreported", "a holder learns that its lock is lost"},
	{"order", "a fair lock is granted in the order of arrival"},
	{"starved", "when the faults are over, every waiting worker gets its turn"},
	{"linearizable", "the history of each exclusive lock is that of one lock"},
	{"leftovers", "nothing is left in the store"},
}

// Verdict is what became of a promise.
type Verdict struct {
	promise Promise

	Count    int
	worst    time.Duration
	Examples []Violation
}

// maxExamples bounds how many violations of one promise are kept.
const maxExamples = 20

// Violation is one case in which a promise was broken.
type Violation struct {
	Code   string     `json:"code"`
	Text   string     `json:"text"`
	Lock   string     `json:"lock"`
	Extent float64    `json:"extent_ms"` // of an overlap, or of how much later an overtaker has called
	Holds  []HoldView `json:"holds"`     // those that contradict the promise
}

// HoldView is a hold, for the report. Times are seconds since the start.
type HoldView struct {
	Lock    string  `json:"lock"`
	Worker  int     `json:"worker"`
	Process int     `json:"process"` // which process of the worker: 0 is the first
	Token   int64   `json:"token"`
	Weight  int64   `json:"weight"`
	Called  float64 `json:"called"`
	Begin   float64 `json:"begin"`
	End     float64 `json:"end"`
	How     string  `json:"how"`
	Cause   string  `json:"cause,omitempty"`
}

// seconds is a duration in nanoseconds as seconds, with six digits behind the point.
func seconds(ns int64) float64 { return float64(ns/1000) / 1e6 }

func (h *hold) view(start int64) HoldView {
	at := func(t int64) float64 { return seconds(t - start) }
	return HoldView{Lock: h.name, Worker: h.worker, Process: h.incarnation, Token: h.token, Weight: h.weight,
		Called: at(h.called), Begin: at(h.begin), End: at(h.end), How: h.how, Cause: h.cause}
}

// timeline keeps the latest holds for the page.
type timeline struct {
	holds []HoldView
	next  int // where the next one goes, once it is full
}

// maxTimeline bounds how many holds the page shows.
const maxTimeline = 20000

func (t *timeline) addHold(h HoldView) {
	if len(t.holds) < maxTimeline {
		t.holds = append(t.holds, h)
		return
	}
	t.holds[t.next] = h
	t.next = (t.next + 1) % maxTimeline
}
