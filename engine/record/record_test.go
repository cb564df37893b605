package record

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// stepWorld is a store's clock and an observer's knowledge, for steps that a test makes itself.
type stepWorld struct {
	now      int64
	liveness map[string]Liveness
}

func (w *stepWorld) stepInput() StepInput {
	return StepInput{ClockTrusted: true, Now: w.now, Earliest: w.now, Latest: w.now, ConfirmWindow: 2 * time.Second,
		LivenessOf: func(c *Claim) Liveness { return w.liveness[c.ID] }}
}

var info = driver.Info{MaxHolders: driver.MaxHolders, MaxWaiters: driver.MaxWaiters}

func newTestClaim(id string, weight int64) Claim {
	return Claim{ID: id, Weight: weight, TTL: 30 * time.Second}
}

// claimStates describes a record as "id state, id state ...".
func claimStates(r *Record) string {
	var s []string
	for _, c := range r.Claims {
		s = append(s, c.ID+" "+string(c.State))
	}
	return strings.Join(s, ", ")
}

// runSteps makes steps written as words: "+a" a waits for weight 1, "+a:3" for weight 3, "?a" a tries, "-a" a is
// released, "!a" a's client is dead, "~a" a has stopped renewing, ">9" nine seconds pass.
func runSteps(t *testing.T, r *Record, w *stepWorld, kind driver.Kind, limit int64, steps string) {
	t.Helper()
	for _, s := range strings.Fields(steps) {
		id, weight := s[1:], int64(1)
		if name, n, ok := strings.Cut(id, ":"); ok {
			id = name
			fmt.Sscan(n, &weight)
		}
		switch s[0] {
		case '+', '?':
			_, err := r.Acquire(newTestClaim(id, weight), kind, limit, s[0] == '+', info, w.stepInput())
			if err != nil && !errors.Is(err, driver.ErrHeld) {
				t.Fatalf("%s: %v", s, err)
			}
		case '-':
			r.Release(id, w.stepInput())
		case '!', '~':
			w.liveness[id] = map[byte]Liveness{'!': Dead, '~': StoppedRenewing}[s[0]]
			r.expireAndPromote(w.stepInput(), "")
		case '>':
			var sec int64
			fmt.Sscan(id, &sec)
			w.now += sec * 1e6
			r.expireAndPromote(w.stepInput(), "")
		}
		if err := r.Check(); err != nil {
			t.Fatalf("after %s: %v", s, err)
		}
	}
}

func TestSteps(t *testing.T) {
	for _, test := range []struct {
		promise string
		limit   int64
		steps   string
		want    string
	}{
		{"the first is granted", 1, "+a", "a granted"},
		{"the second waits", 1, "+a +b", "a granted, b waiting"},
		{"a refused try leaves no trace", 1, "+a ?b", "a granted"},
		{"a try never overtakes a waiter", 2, "+a:2 +b:2 -a ?c", "b promoted"},
		{"a promotion is no grant", 1, "+a +b -a", "b promoted"},
		{"a promoted waiter grants itself", 1, "+a +b -a +b", "b granted"},
		{"a later claim does not overtake a promoted waiter", 1, "+a +b +c -a +c", "b promoted, c waiting"},
		{"a promoted waiter that is dead is passed at once", 1, "+a +b +c -a !b +c", "c granted"},
		{"a promoted waiter that does not confirm is passed after the window, and the next four are promoted", 1,
			"+a +b +c +d +e +f +g -a >3", "c promoted, d promoted, e promoted, f promoted, g waiting"},
		{"waiters that confirm while all are promoted keep their places", 1, "+a +b +c +d +e -a >3 +d +e",
			"c promoted, d waiting, e waiting"},
		{"dead waiters are removed together", 1, "+a +b +c +d +e -a >3 +e >9", "e promoted"},
		{"a holder that stops renewing is removed", 1, "+a +b +c >31", ""},
		{"a dead holder is replaced at once", 1, "+a !a ?b", "b granted"},
		{"a semaphore grants up to its limit", 3, "+a +b +c +d", "a granted, b granted, c granted, d waiting"},
		{"a small claim does not starve a big one", 3, "+a:2 +b:2 +c", "a granted, b waiting, c waiting"},
		{"several are promoted at once if they fit", 3, "+a:3 +b +c +d:2 -a", "b promoted, c promoted, d waiting"},
		{"a waiter that leaves lets those behind it be promoted", 3, "+a:2 +b:2 +c -b", "a granted, c promoted"},
		{"a writer behind readers is not starved by readers", driver.RWLimit, "+a +b +w:1048576 +c",
			"a granted, b granted, w waiting, c waiting"},
		{"readers behind a writer are granted together", driver.RWLimit, "+w:1048576 +a +b -w +a +b",
			"a granted, b granted"},
	} {
		t.Run(test.promise, func(t *testing.T) {
			r, w := &Record{}, &stepWorld{now: 1e15, liveness: map[string]Liveness{}}
			runSteps(t, r, w, driver.KindSemaphore, test.limit, test.steps)
			if got := claimStates(r); got != test.want {
				t.Errorf("%s\n got %s\nwant %s", test.steps, got, test.want)
			}
		})
	}
}

// TestTokensOnlyRise: tokens rise although the store's clock is set back each time.
func TestTokensOnlyRise(t *testing.T) {
	r, w := &Record{}, &stepWorld{now: 1e15, liveness: map[string]Liveness{}}
	last := int64(0)
	for i := range 100 {
		w.now -= int64(i) * 1e6 // the store's clock is set back each time
		id := fmt.Sprint("c", i)
		c, err := r.Acquire(newTestClaim(id, 1), driver.KindMutex, 1, false, info, w.stepInput())
		if err != nil || c.Token <= last {
			t.Fatalf("token %d after %d (%v)", c.Token, last, err)
		}
		last = c.Token
		if i%3 == 0 {
			if err := r.Break(id, driver.Break{Mode: driver.BreakForce}, w.stepInput()); err != nil {
				t.Fatal(err)
			}
		}
		r.Release(id, w.stepInput())
	}
	if r.Token < last || r.Idle == 0 || r.Kind != "" {
		t.Errorf("the idle record is %+v", r)
	}
}

func TestRenewNeverCreatesClaim(t *testing.T) {
	w := &stepWorld{now: 1e15, liveness: map[string]Liveness{}}
	r := &Record{}
	runSteps(t, r, w, driver.KindMutex, 1, "+a")
	token := r.Token
	if _, err := r.Renew("a", token-1, w.stepInput()); !errors.Is(err, driver.ErrLost) {
		t.Errorf("with an old token: %v", err)
	}
	runSteps(t, r, w, driver.KindMutex, 1, "+b -a")
	if _, err := r.Renew("a", token, w.stepInput()); !errors.Is(err, driver.ErrLost) || claimStates(r) != "b promoted" {
		t.Errorf("after its release: %v, %s", err, claimStates(r))
	}
	if _, err := r.Renew("b", 0, w.stepInput()); !errors.Is(err, driver.ErrLost) {
		t.Errorf("a waiting claim was renewed as a holder: %v", err)
	}
}

func TestBreak(t *testing.T) {
	w := &stepWorld{now: 1e15, liveness: map[string]Liveness{}}
	r := &Record{}
	runSteps(t, r, w, driver.KindMutex, 1, "+a +b")
	token := r.Token
	var loss *driver.LossError
	if err := r.Break("a", driver.Break{Mode: driver.BreakGraceful}, w.stepInput()); err != nil ||
		claimStates(r) != "a granted, b waiting" {
		t.Errorf("a gracefully broken holder remains until it learns of it: %v, %s", err, claimStates(r))
	}
	if _, err := r.Renew("a", token, w.stepInput()); !errors.As(err, &loss) || loss.Cause != driver.LossBroken ||
		!loss.StaysHeld {
		t.Errorf("a gracefully broken holder is not renewed, and keeps others out: %v", err)
	}
	if err := r.Break("a", driver.Break{Mode: driver.BreakForce}, w.stepInput()); err != nil || claimStates(r) != "b promoted" ||
		r.Token <= token {
		t.Errorf("a forced break frees the lock at once and raises the token: %v, %s", err, claimStates(r))
	}
	if _, err := r.Renew("a", token, w.stepInput()); !errors.As(err, &loss) || loss.Cause != driver.LossBroken ||
		loss.StaysHeld {
		t.Errorf("a holder that was broken by force keeps nobody out: %v", err)
	}
	if err := r.Break("a", driver.Break{Mode: driver.BreakForce}, w.stepInput()); !errors.Is(err, driver.ErrLost) ||
		claimStates(r) != "b promoted" {
		t.Errorf("a break of a claim that does not exist changes nothing: %v, %s", err, claimStates(r))
	}
}

// TestBreakWaiting: a waiting claim that was broken is removed at once, and learns of it at its next step.
func TestBreakWaiting(t *testing.T) {
	w := &stepWorld{now: 1e15, liveness: map[string]Liveness{}}
	r := &Record{}
	runSteps(t, r, w, driver.KindMutex, 1, "+a +b +c")
	if err := r.Break("b", driver.Break{Mode: driver.BreakGraceful}, w.stepInput()); err != nil ||
		claimStates(r) != "a granted, c waiting" {
		t.Errorf("%v, %s", err, claimStates(r))
	}
	for i := range maxEndedNotes - 1 {
		id := fmt.Sprint("x", i)
		runSteps(t, r, w, driver.KindMutex, 1, "+"+id)
		if err := r.Break(id, driver.Break{Mode: driver.BreakForce}, w.stepInput()); err != nil {
			t.Fatal(err)
		}
	}
	var loss *driver.LossError
	if _, err := r.Acquire(newTestClaim("b", 1), driver.KindMutex, 1, true, info, w.stepInput()); !errors.As(err,
		&loss) ||
		loss.Cause != driver.LossBroken {
		t.Errorf("the broken claim's Acquire returned %v", err)
	}
	if claimStates(r) != "a granted, c waiting" || len(r.Ended) != maxEndedNotes || r.NotesDroppedUntil != 0 {
		t.Errorf("%s, %d notes, notes dropped until %d", claimStates(r), len(r.Ended), r.NotesDroppedUntil)
	}
}

// TestBreakNotesAreBounded: a client that ends another client's claim leaves a note of the cause, which is kept as long
// as the claim's owner may ask for it. The number of notes is bounded. If one was dropped, the record says until when
// it may be missing.
func TestBreakNotesAreBounded(t *testing.T) {
	w := &stepWorld{now: 1e15, liveness: map[string]Liveness{}}
	r := &Record{}
	runSteps(t, r, w, driver.KindSemaphore, 1000, "+a +b +c +d +e -e ~a !b")
	if err := errors.Join(r.Break("c", driver.Break{Mode: driver.BreakForce}, w.stepInput()),
		r.Break("d", driver.Break{Mode: driver.BreakGraceful}, w.stepInput())); err != nil {
		t.Fatal(err)
	}
	runSteps(t, r, w, driver.KindSemaphore, 1000, "~d")
	for id, want := range map[string]driver.LossCause{"a": driver.LossExpired, "b": driver.LossGone,
		"c": driver.LossBroken, "d": driver.LossBroken, "e": ""} {
		if got := r.notedCause(id); got != want {
			t.Errorf("the note of %s has the cause %q, not %q", id, got, want)
		}
		var loss *driver.LossError
		if _, err := r.Renew(id, 1, w.stepInput()); !errors.As(err, &loss) || want != "" && loss.Cause != want {
			t.Errorf("the renewal of %s returned %v", id, err)
		}
	}
	delete(w.liveness, "a")
	runSteps(t, r, w, driver.KindSemaphore, 1000, "+a")
	if claimStates(r) != "a granted" || r.notedCause("a") != "" {
		t.Errorf("a claim that is made again should have no note: %s, %q", claimStates(r), r.notedCause("a"))
	}
	runSteps(t, r, w, driver.KindSemaphore, 1000, "-a >39")
	if r.notedCause("c") == "" || r.isForgettable(w.now) {
		t.Error("a note was removed while its owner may ask for it")
	}
	runSteps(t, r, w, driver.KindSemaphore, 1000, ">2 +x")
	if len(r.Ended) != 0 {
		t.Errorf("these notes should have been removed: %v", r.Ended)
	}
	for i := range 2 * maxEndedNotes {
		runSteps(t, r, w, driver.KindSemaphore, 1000, fmt.Sprintf("+n%d ~n%d", i, i))
	}
	if len(r.Ended) != maxEndedNotes || r.notedCause(fmt.Sprint("n", 2*maxEndedNotes-1)) == "" ||
		r.NotesDroppedUntil < w.now+40e6 {
		t.Errorf("%d notes, notes dropped until %d", len(r.Ended), r.NotesDroppedUntil)
	}
	runSteps(t, r, w, driver.KindSemaphore, 1000, "-x")
	if r.isForgettable(w.now+30e6) || !r.isForgettable(w.now+41e6) {
		t.Error("an idle record with notes should be swept when the notes are not needed any more")
	}
	runSteps(t, r, w, driver.KindSemaphore, 1000, ">41")
	if len(r.Ended) != 0 || r.NotesDroppedUntil != 0 {
		t.Errorf("after that time: %v, %d", r.Ended, r.NotesDroppedUntil)
	}
}

// TestNotesWithoutClock: where the store's clock is not known, the number of notes is bounded, and once one was
// dropped, no time is long enough for a missing note to prove anything.
func TestNotesWithoutClock(t *testing.T) {
	w := &stepWorld{now: 1e15, liveness: map[string]Liveness{}}
	r := &Record{Kind: driver.KindSemaphore, Limit: 1000, Claims: []Claim{newTestClaim("holder", 1)}}
	for i := range 3 * maxEndedNotes {
		w.now += int64(i) * time.Hour.Microseconds()
		in := w.stepInput()
		in.ClockTrusted = false
		gone := newTestClaim(fmt.Sprint("gone", i), 1)
		r.addNote(&gone, driver.LossExpired, in)
		r.dropOldNotes(in)
		if len(r.Ended) > maxEndedNotes || (r.NotesDroppedUntil != 0) != (i >= maxEndedNotes) {
			t.Fatalf("after %d endings there are %d notes, dropped until %d", i+1, len(r.Ended), r.NotesDroppedUntil)
		}
	}
}

// TestOldNotes: records of earlier versions can be read. They have only the ids of waiting claims that were broken.
func TestOldNotes(t *testing.T) {
	r, err := Decode("x", []byte(`{"holdfast":1,"kind":"mutex","limit":1,"token":1000000000000000,"claims":[`+
		`{"id":"a","weight":1,"ttl_ms":30000,"state":"granted","token":1000000000000000,"beat":1,"allow_ms":30000}],"out":["b"]}`))
	if err != nil {
		t.Fatal(err)
	}
	w := &stepWorld{now: 1e15 + 60e6, liveness: map[string]Liveness{}}
	runSteps(t, r, w, driver.KindMutex, 1, "+c")
	if _, err := r.Acquire(newTestClaim("b", 1), driver.KindMutex, 1, true, info, w.stepInput()); !errors.Is(err,
		driver.ErrLost) {
		t.Errorf("a waiting claim that was broken: Acquire returned %v", err)
	}
	if data, err := Encode(r); err != nil || strings.Contains(string(data), `"out"`) {
		t.Errorf("%s, %v", data, err)
	}
}

// TestExpiredHolderIsLost: a holder that has certainly expired has lost the lock, even if no other claim came since. It
// is neither renewed nor released.
func TestExpiredHolderIsLost(t *testing.T) {
	w := &stepWorld{now: 1e15, liveness: map[string]Liveness{}}
	r := &Record{}
	runSteps(t, r, w, driver.KindMutex, 1, "+a")
	w.now += 31e6
	var loss *driver.LossError
	if _, err := r.Renew("a", r.Token, w.stepInput()); !errors.As(err, &loss) || loss.Cause != driver.LossExpired {
		t.Errorf("its renewal returned %v", err)
	}
	if existed, expired := (&Record{Claims: slices.Clone(r.Claims)}).Release("a", w.stepInput()); !existed || !expired {
		t.Errorf("its release: claim existed %v, had expired %v", existed, expired)
	}
	unsure := w.stepInput()
	unsure.Earliest -= 2e6
	if _, err := r.Renew("a", r.Token, unsure); err != nil {
		t.Errorf("while it may not have expired yet, its renewal returned %v", err)
	}
	w.now += 31e6
	if err := r.Break("a", driver.Break{Mode: driver.BreakForce}, w.stepInput()); err != nil || claimStates(r) != "" {
		t.Errorf("after a forced break the claims are %q, %v", claimStates(r), err)
	}
}

// TestMismatchAndBounds: a claim of another limit is refused with an error that names both, and so is one for which the
// queue is full.
func TestMismatchAndBounds(t *testing.T) {
	w := &stepWorld{now: 1e15, liveness: map[string]Liveness{}}
	r := &Record{}
	runSteps(t, r, w, driver.KindSemaphore, 2, "+a")
	_, err := r.Acquire(newTestClaim("b", 1), driver.KindSemaphore, 3, true, info, w.stepInput())
	if !errors.Is(err, driver.ErrMismatch) || !strings.Contains(err.Error(), "semaphore with limit 2") ||
		!strings.Contains(err.Error(), "semaphore with limit 3") {
		t.Errorf("a mismatch names both: %v", err)
	}
	for i := range info.MaxWaiters {
		runSteps(t, r, w, driver.KindSemaphore, 2, fmt.Sprintf("+w%d:2", i))
	}
	if _, err := r.Acquire(newTestClaim("z", 1), driver.KindSemaphore, 2, true, info, w.stepInput()); !errors.Is(err,
		driver.ErrQueueFull) {
		t.Errorf("the queue is bounded: %v", err)
	}
	if data, err := Encode(r); err != nil || len(data) > MaxData {
		t.Errorf("a full queue is encoded: %v", err)
	}
}

func TestCodec(t *testing.T) {
	r, w := &Record{}, &stepWorld{now: 1e15, liveness: map[string]Liveness{}}
	runSteps(t, r, w, driver.KindSemaphore, 3, "+a:2 +b:2 +c +d:2 +e:2 -a +b:2 ~b +d:2 !d")
	if err := r.Break("c", driver.Break{Mode: driver.BreakGraceful}, w.stepInput()); err != nil {
		t.Fatal(err)
	}
	r.NotesDroppedUntil, r.Claims[0].ConfirmWindow, r.Claims[0].Marked = w.now, 5*time.Second, true
	if len(r.Ended) != 3 {
		t.Fatalf("%v", r.Ended)
	}
	data, err := Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Decode("x", data)
	if err != nil || fmt.Sprint(back) != fmt.Sprint(r.clone()) {
		t.Errorf("%v\n got %+v\nwant %+v", err, back, r)
	}
	run := `{"attempt":17,"state":"failed","id":"a","token":5}`
	for _, bad := range []string{
		`{"holdfast":1,"token":5,"runs":{"list":[],"pages":-1}}`,
		`{"holdfast":1,"token":5,"runs":{"list":[],"pages":1125899906842624}}`,
		`{"holdfast":1,"token":5,"runs":{"list":[` + run + `],"pages":1,"dropped":2}}`,
		`{"holdfast":1,"token":5,"runs":{"list":[` + run + `],"pages":1,"dropped":-1}}`,
		`{"holdfast":1,"token":5,"runs":{"list":[` + run + `],"pages":17}}`, "", "{", "null", "[]", "hello", `{"holdfast":1}{}`,
		`{"holdfast":1,"token":5,"kind":"mutex","limit":1,"claims":[{"id":"a","weight":2,"ttl_ms":1,"allow_ms":1,"state":"waiting"}]}`,
		`{"holdfast":1,"token":5,"kind":"mutex","limit":1,"claims":[{"id":"a","weight":1,"ttl_ms":1,"allow_ms":1,"state":"granted","token":6}]}`,
	} {
		if _, err := Decode("x", []byte(bad)); !errors.Is(err, driver.ErrCorrupt) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for _, format := range []string{"1", "2"} {
		text := `{"holdfast":` + format + `,"token":5,"runs":{"list":[` + run + `],"pages":1,"dropped":1}}`
		if _, err := Decode("x", []byte(text)); err != nil {
			t.Errorf("a history with a page: %v", err)
		}
	}
	r.Claims[0].Weight = 9
	if _, err := Encode(r); err == nil {
		t.Error("a broken record was encoded")
	}
}

// TestNewerFormat: a record of a newer version is refused, with the advice to upgrade, and not to remove it.
func TestNewerFormat(t *testing.T) {
	_, err := Decode("x", fmt.Appendf(nil, `{"holdfast":%d,"token":1}`, Format+1))
	if !errors.Is(err, driver.ErrCorrupt) || !strings.Contains(err.Error(), "upgrade") || strings.Contains(err.Error(), "remove") {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	r := &Record{Kind: driver.KindMutex, Limit: 1, Token: 7,
		Claims: []Claim{{ID: "a", Weight: 1, TTL: time.Second, SilenceLimit: time.Second, State: Granted, Token: 7}}}
	data, _ := Encode(r)
	f.Add(data)
	f.Add([]byte(`{"holdfast":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Decode("x", data)
		if err != nil {
			if !errors.Is(err, driver.ErrCorrupt) {
				t.Errorf("%v", err)
			}
			return
		}
		again, err := Encode(r)
		if err != nil {
			t.Fatalf("decoded, but not encoded: %v", err)
		}
		if _, err := Decode("x", again); err != nil {
			t.Fatalf("encoded, but not decoded: %v", err)
		}
	})
}

// TestReasonOfBreak: a holder learns what the operator said who broke it, whether it asks before or after its claim is
// gone, and in whatever way it asks. The reason is stored with the claim and with the note.
func TestReasonOfBreak(t *testing.T) {
	w := &stepWorld{now: 1e15, liveness: map[string]Liveness{}}
	r := &Record{}
	runSteps(t, r, w, driver.KindMutex, 1, "+a +b")
	check := func(when string, err error) {
		t.Helper()
		var loss *driver.LossError
		if !errors.As(err, &loss) || loss.Cause != driver.LossBroken || loss.Err == nil || loss.Err.Error() != "why" {
			t.Errorf("%s: %v", when, err)
		}
	}
	stored := func() {
		t.Helper()
		data, err := Encode(r)
		if err == nil {
			r, err = Decode("x", data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	token := r.Token
	in := w.stepInput()
	for _, mode := range []driver.BreakMode{driver.BreakGraceful, driver.BreakForce} {
		if err := r.Break("a", driver.Break{Mode: mode, Reason: "why"}, in); err != nil {
			t.Fatal(err)
		}
		stored()
		_, err := r.Renew("a", token, w.stepInput())
		check("renew", err)
		_, err = r.Acquire(newTestClaim("a", 1), driver.KindMutex, 1, false, info, w.stepInput())
		check("acquire", err)
	}
	if err := r.Break("b", driver.Break{Mode: driver.BreakGraceful, Reason: "why"}, in); err != nil { // a waiter
		t.Fatal(err)
	}
	stored()
	_, err := r.Acquire(newTestClaim("b", 1), driver.KindMutex, 1, true, info, w.stepInput())
	check("a waiter", err)
	r.dropReasons()
	if _, err := r.Renew("a", token, w.stepInput()); !errors.Is(err, driver.ErrLost) ||
		strings.Contains(err.Error(), "why") {
		t.Errorf("a dropped reason: %v", err)
	}
}

// noticeSession is the Watcher of a client with that session.
type noticeSession string

func (s noticeSession) Session() string { return string(s) }

func (noticeSession) Watch(string) Watch { return nil }

// TestClientsToNotify: a swap notifies the clients of all claims that are promoted, and of the first one that waits,
// and not its own. When a promoted claim did not confirm, all others are promoted. Then the client that removes it may
// have a claim in their middle, which goes on waiting. Those for whom nothing has changed are notified again only if
// the clients notify each other.
func TestClientsToNotify(t *testing.T) {
	w, r := &stepWorld{now: 1}, &Record{}
	claimOf := func(id string) Claim {
		c := newTestClaim(id, 1)
		c.Session = id
		return c
	}
	acquire := func(id string) []string {
		t.Helper()
		before := r.clone()
		if _, err := r.Acquire(claimOf(id), driver.KindMutex, 1, true, info, w.stepInput()); err != nil {
			t.Fatal(err)
		}
		return (&engine{watcher: noticeSession(id), traits: Traits{PeerNotices: true}}).clientsToNotify(before, r)
	}
	for _, id := range []string{"holder", "dead", "a", "b", "c", "d"} {
		acquire(id)
	}
	queued := r.clone()
	r.Release("holder", w.stepInput())
	for own, want := range map[noticeSession][]string{"holder": {"dead", "a"}, "a": {"dead"}, "d": {"dead", "a"}} {
		if got := (&engine{watcher: own}).clientsToNotify(queued, r); !slices.Equal(got, want) {
			t.Errorf("%s: after a release %q are notified, want %q", own, got, want)
		}
	}
	e := &engine{watcher: noticeSession("x")}
	if got := e.clientsToNotify(r, r.clone()); len(got) > 0 {
		t.Errorf("%q are notified again", got)
	}
	e.traits.PeerNotices = true
	if got, want := e.clientsToNotify(r, r.clone()), []string{"dead", "a"}; !slices.Equal(got, want) {
		t.Errorf("clients that notify each other notify %q again, want %q", got, want)
	}
	w.now += time.Minute.Microseconds() / 10
	if got, want := acquire("b"), []string{"a", "c", "d"}; !slices.Equal(got, want) {
		t.Errorf("%s: %q are notified, want %q", claimStates(r), got, want)
	}
}

// aliveTable is a LivenessChecker.
type aliveTable struct{}

func (aliveTable) Session() string    { return "own" }
func (aliveTable) IsDead(string) bool { return false }

func (aliveTable) LivenessFile() (*os.File, error) { return nil, driver.ErrUnsupported }

// TestRecordsThatMustOutlive: a record is written to the disk if anybody but its clients' processes relies on it.
func TestRecordsThatMustOutlive(t *testing.T) {
	for _, c := range []struct {
		claim    Claim
		liveness LivenessChecker
		want     bool
	}{
		{Claim{State: Granted, Session: "x"}, aliveTable{}, false},
		{Claim{State: Granted}, aliveTable{}, true},
		{Claim{State: Waiting}, aliveTable{}, false},
		{Claim{State: Granted}, nil, false},
		{Claim{State: Granted, Detached: true}, nil, true},
	} {
		if got := (&engine{liveness: c.liveness}).mustOutlive(&c.claim); got != c.want {
			t.Errorf("%+v: %v", c.claim, got)
		}
	}
}

// TestSuperseded: of the claims that are newest-only, those that wait give up for one that waits behind them, in
// whatever order they look, also when they are promoted, and the last one never does. One that was granted stays, and
// claims without the mark take no part.
func TestSuperseded(t *testing.T) {
	mark := driver.MarkNewestOnly
	old, mid, new := mark("old-abcdefghij"), mark("mid-abcdefghij"), mark("new-abcdefghij")
	if !driver.IsNewestOnly(old) || driver.IsNewestOnly("old") || len(old) != len("old-abcdefghij") {
		t.Fatal(old)
	}
	for _, c := range []struct {
		name, steps string
		gives       []string // who must give up
	}{
		{"one waits", "+h +" + old, nil},
		{"a newer one waits", "+h +" + old + " +" + new, []string{old}},
		{"two newer ones wait", "+h +" + old + " +" + mid + " +" + new, []string{old, mid}},
		{"claims without the mark", "+h +a +" + old + " +b", nil},
		{"one between", "+h +" + old + " +b +" + new, []string{old}},
		{"it holds the lock", "+" + old + " +" + new, nil},
		{"it was promoted", "+h +" + old + " +" + new + " -h", []string{old}},
		{"the newer one has gone", "+h +" + old + " +" + new + " -" + new, nil},
		{"the newer one is dead", "+h +" + old + " +" + new + " !" + new, nil},
	} {
		w := &stepWorld{now: 1e15, liveness: map[string]Liveness{}}
		r := &Record{}
		for i, s := range strings.Fields(c.steps) { // without the looks that a newer one would end
			if id := s[1:]; s[0] == '+' && i > 0 && r.findClaim(id) != nil {
				continue
			}
			runSteps(t, r, w, driver.KindMutex, 1, s)
		}
		for _, id := range []string{old, mid, new} {
			mine := r.findClaim(id)
			if mine == nil {
				continue
			}
			if gives := r.isSuperseded(mine); gives != slices.Contains(c.gives, id) {
				t.Errorf("%s: %s gives up: %t", c.name, id, gives)
			}
			_, err := r.clone().Acquire(newTestClaim(id, 1), driver.KindMutex, 1, true, info, w.stepInput())
			if gave := errors.Is(err, driver.ErrSuperseded); gave != slices.Contains(c.gives, id) || err != nil && !gave {
				t.Errorf("%s: %s gets %v", c.name, id, err)
			}
		}
	}
}
