package record

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// world is a store's clock and what an observer knows, for steps made by hand.
type world struct {
	now  int64
	over map[string]Liveness
}

func (w *world) moment() StepInput {
	return StepInput{ClockTrusted: true, Now: w.now, Earliest: w.now, Latest: w.now, ConfirmWindow: 2 * time.Second,
		LivenessOf: func(c *Claim) Liveness { return w.over[c.ID] }}
}

var info = driver.Info{MaxHolders: driver.MaxHolders, MaxWaiters: driver.MaxWaiters}

func claim(id string, weight int64) Claim {
	return Claim{ID: id, Weight: weight, TTL: 30 * time.Second}
}

// stands is a record as "id state id state ...".
func stands(r *Record) string {
	var s []string
	for _, c := range r.Claims {
		s = append(s, c.ID+" "+string(c.State))
	}
	return strings.Join(s, ", ")
}

// run makes steps written as words: "+a" a waits for weight 1, "+a:3" for weight 3, "?a" a tries, "-a" a leaves, "!a"
// a's client is found gone, "~a" a is found silent, ">9" nine seconds pass.
func run(t *testing.T, r *Record, w *world, kind driver.Kind, limit int64, steps string) {
	t.Helper()
	for _, s := range strings.Fields(steps) {
		id, weight := s[1:], int64(1)
		if name, n, ok := strings.Cut(id, ":"); ok {
			id = name
			fmt.Sscan(n, &weight)
		}
		switch s[0] {
		case '+', '?':
			_, err := r.Acquire(claim(id, weight), kind, limit, s[0] == '+', info, w.moment())
			if err != nil && !errors.Is(err, driver.ErrHeld) {
				t.Fatalf("%s: %v", s, err)
			}
		case '-':
			r.Release(id, w.moment())
		case '!', '~':
			w.over[id] = map[byte]Liveness{'!': Dead, '~': StoppedRenewing}[s[0]]
			r.expireAndPromote(w.moment(), "")
		case '>':
			var sec int64
			fmt.Sscan(id, &sec)
			w.now += sec * 1e6
			r.expireAndPromote(w.moment(), "")
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
		{"one that only tries leaves no trace", 1, "+a ?b", "a granted"},
		{"one that only tries never passes one that waits", 2, "+a:2 +b:2 -a ?c", "b called"},
		{"being called is no grant", 1, "+a +b -a", "b called"},
		{"the called one grants itself", 1, "+a +b -a +b", "b granted"},
		{"a later one does not take the turn of the called", 1, "+a +b +c -a +c", "b called, c waiting"},
		{"a called one that is gone is passed at once", 1, "+a +b +c -a !b +c", "c granted"},
		{"a called one that does not answer is passed after the window, and the rest are called", 1,
			"+a +b +c +d -a >3", "c called, d called"},
		{"those that answer the call of the rest keep their places", 1, "+a +b +c +d +e -a >3 +d +e",
			"c called, d waiting, e waiting"},
		{"dead ones in line go together", 1, "+a +b +c +d +e -a >3 +e >9", "e called"},
		{"a silent holder's place passes on", 1, "+a +b +c >31", ""},
		{"a holder found gone is replaced at once", 1, "+a !a ?b", "b granted"},
		{"a semaphore grants up to its limit", 3, "+a +b +c +d", "a granted, b granted, c granted, d waiting"},
		{"a small claim does not starve a big one", 3, "+a:2 +b:2 +c", "a granted, b waiting, c waiting"},
		{"several are called at once where they fit", 3, "+a:3 +b +c +d:2 -a", "b called, c called, d waiting"},
		{"a waiting one that leaves lets in those behind it", 3, "+a:2 +b:2 +c -b", "a granted, c called"},
		{"a writer behind readers is not starved by readers", driver.RWLimit, "+a +b +w:1048576 +c",
			"a granted, b granted, w waiting, c waiting"},
		{"readers behind a writer come in together", driver.RWLimit, "+w:1048576 +a +b -w +a +b",
			"a granted, b granted"},
	} {
		t.Run(test.promise, func(t *testing.T) {
			r, w := &Record{}, &world{now: 1e15, over: map[string]Liveness{}}
			run(t, r, w, driver.KindSemaphore, test.limit, test.steps)
			if got := stands(r); got != test.want {
				t.Errorf("%s\n got %s\nwant %s", test.steps, got, test.want)
			}
		})
	}
}

func TestTokensOnlyGrow(t *testing.T) {
	r, w := &Record{}, &world{now: 1e15, over: map[string]Liveness{}}
	last := int64(0)
	for i := range 100 {
		w.now -= int64(i) * 1e6 // the store's clock is set back all the time
		id := fmt.Sprint("c", i)
		c, err := r.Acquire(claim(id, 1), driver.KindMutex, 1, false, info, w.moment())
		if err != nil || c.Token <= last {
			t.Fatalf("token %d after %d (%v)", c.Token, last, err)
		}
		last = c.Token
		if i%3 == 0 {
			if err := r.Break(id, driver.BreakForce, w.moment()); err != nil {
				t.Fatal(err)
			}
		}
		r.Release(id, w.moment())
	}
	if r.Token < last || r.Idle == 0 || r.Kind != "" {
		t.Errorf("the idle record is %+v", r)
	}
}

func TestRenewNeverMakesAgain(t *testing.T) {
	w := &world{now: 1e15, over: map[string]Liveness{}}
	r := &Record{}
	run(t, r, w, driver.KindMutex, 1, "+a")
	token := r.Token
	if _, err := r.Renew("a", token-1, w.moment()); !errors.Is(err, driver.ErrLost) {
		t.Errorf("with an old token: %v", err)
	}
	run(t, r, w, driver.KindMutex, 1, "+b -a")
	if _, err := r.Renew("a", token, w.moment()); !errors.Is(err, driver.ErrLost) || stands(r) != "b called" {
		t.Errorf("after its release: %v, %s", err, stands(r))
	}
	if _, err := r.Renew("b", 0, w.moment()); !errors.Is(err, driver.ErrLost) {
		t.Errorf("a waiting claim was renewed as a holder: %v", err)
	}
}

func TestBreak(t *testing.T) {
	w := &world{now: 1e15, over: map[string]Liveness{}}
	r := &Record{}
	run(t, r, w, driver.KindMutex, 1, "+a +b")
	token := r.Token
	var loss *driver.LossError
	if err := r.Break("a", driver.BreakGraceful, w.moment()); err != nil || stands(r) != "a granted, b waiting" {
		t.Errorf("a marked holder stands until it has heard: %v, %s", err, stands(r))
	}
	if _, err := r.Renew("a", token, w.moment()); !errors.As(err, &loss) || loss.Cause != driver.LossBroken {
		t.Errorf("a marked holder is not renewed: %v", err)
	}
	if err := r.Break("a", driver.BreakForce, w.moment()); err != nil || stands(r) != "b called" || r.Token <= token {
		t.Errorf("force frees at once and raises the token: %v, %s", err, stands(r))
	}
	if err := r.Break("a", driver.BreakForce, w.moment()); !errors.Is(err, driver.ErrLost) || stands(r) != "b called" {
		t.Errorf("what does not stand is not broken, and nobody else: %v, %s", err, stands(r))
	}
}

// A waiting claim that was broken goes at once, and is told when it comes again, though others were broken since.
func TestBreakWaiting(t *testing.T) {
	w := &world{now: 1e15, over: map[string]Liveness{}}
	r := &Record{}
	run(t, r, w, driver.KindMutex, 1, "+a +b +c")
	if err := r.Break("b", driver.BreakGraceful, w.moment()); err != nil || stands(r) != "a granted, c waiting" {
		t.Errorf("%v, %s", err, stands(r))
	}
	for i := range maxEndedNotes - 1 {
		id := fmt.Sprint("x", i)
		run(t, r, w, driver.KindMutex, 1, "+"+id)
		if err := r.Break(id, driver.BreakForce, w.moment()); err != nil {
			t.Fatal(err)
		}
	}
	var loss *driver.LossError
	if _, err := r.Acquire(claim("b", 1), driver.KindMutex, 1, true, info, w.moment()); !errors.As(err, &loss) ||
		loss.Cause != driver.LossBroken {
		t.Errorf("it is told %v", err)
	}
	if stands(r) != "a granted, c waiting" || len(r.Ended) != maxEndedNotes || r.NotesDroppedUntil != 0 {
		t.Errorf("%s, and %d are remembered, not all until %d", stands(r), len(r.Ended), r.NotesDroppedUntil)
	}
}

// Whoever ends another's claim leaves a note of why, for as long as the claim's owner may ask. There are not many;
// where one had to go, the record says up to when that may be missed.
func TestBreakNotesAreBounded(t *testing.T) {
	w := &world{now: 1e15, over: map[string]Liveness{}}
	r := &Record{}
	run(t, r, w, driver.KindSemaphore, 1000, "+a +b +c +d +e -e ~a !b")
	if err := errors.Join(r.Break("c", driver.BreakForce, w.moment()),
		r.Break("d", driver.BreakGraceful, w.moment())); err != nil {
		t.Fatal(err)
	}
	run(t, r, w, driver.KindSemaphore, 1000, "~d")
	for id, want := range map[string]driver.LossCause{"a": driver.LossExpired, "b": driver.LossGone,
		"c": driver.LossBroken, "d": driver.LossBroken, "e": ""} {
		if got := r.notedCause(id); got != want {
			t.Errorf("of %s the note says %q, not %q", id, got, want)
		}
		var loss *driver.LossError
		if _, err := r.Renew(id, 1, w.moment()); !errors.As(err, &loss) || want != "" && loss.Cause != want {
			t.Errorf("the renewal of %s is told %v", id, err)
		}
	}
	delete(w.over, "a")
	run(t, r, w, driver.KindSemaphore, 1000, "+a")
	if stands(r) != "a granted" || r.notedCause("a") != "" {
		t.Errorf("what comes again is another claim: %s, and the note says %q", stands(r), r.notedCause("a"))
	}
	run(t, r, w, driver.KindSemaphore, 1000, "-a >39")
	if r.notedCause("c") == "" || r.isForgettable(w.now) {
		t.Error("a note is gone while its owner may ask for it")
	}
	run(t, r, w, driver.KindSemaphore, 1000, ">2 +x")
	if len(r.Ended) != 0 {
		t.Errorf("nobody asks for these any more: %v", r.Ended)
	}
	for i := range 2 * maxEndedNotes {
		run(t, r, w, driver.KindSemaphore, 1000, fmt.Sprintf("+n%d ~n%d", i, i))
	}
	if len(r.Ended) != maxEndedNotes || r.notedCause(fmt.Sprint("n", 2*maxEndedNotes-1)) == "" ||
		r.NotesDroppedUntil < w.now+40e6 {
		t.Errorf("%d notes, and one may be missed until %d", len(r.Ended), r.NotesDroppedUntil)
	}
	run(t, r, w, driver.KindSemaphore, 1000, "-x")
	if r.isForgettable(w.now+30e6) || !r.isForgettable(w.now+41e6) {
		t.Error("an idle record with notes is to be swept when those are of no use any more")
	}
	run(t, r, w, driver.KindSemaphore, 1000, ">41")
	if len(r.Ended) != 0 || r.NotesDroppedUntil != 0 {
		t.Errorf("after that time: %v, %d", r.Ended, r.NotesDroppedUntil)
	}
}

// What an earlier version has written is read: of the waiting claims that were broken it kept the ids alone.
func TestOldNotes(t *testing.T) {
	r, err := Decode("x", []byte(`{"holdfast":1,"kind":"mutex","limit":1,"token":1000000000000000,"claims":[`+
		`{"id":"a","weight":1,"ttl_ms":30000,"state":"granted","token":1000000000000000,"beat":1,"allow_ms":30000}],"out":["b"]}`))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{now: 1e15 + 60e6, over: map[string]Liveness{}}
	run(t, r, w, driver.KindMutex, 1, "+c")
	if _, err := r.Acquire(claim("b", 1), driver.KindMutex, 1, true, info, w.moment()); !errors.Is(err,
		driver.ErrLost) {
		t.Errorf("a waiting claim that was broken is told %v", err)
	}
	if data, err := Encode(r); err != nil || strings.Contains(string(data), `"out"`) {
		t.Errorf("%s, %v", data, err)
	}
}

// A holder whose time is surely over has lost the lock, also where nobody has come since: it is neither renewed nor
// released.
func TestPastItsEnd(t *testing.T) {
	w := &world{now: 1e15, over: map[string]Liveness{}}
	r := &Record{}
	run(t, r, w, driver.KindMutex, 1, "+a")
	w.now += 31e6
	var loss *driver.LossError
	if _, err := r.Renew("a", r.Token, w.moment()); !errors.As(err, &loss) || loss.Cause != driver.LossExpired {
		t.Errorf("its renewal is told %v", err)
	}
	if there, past := (&Record{Claims: slices.Clone(r.Claims)}).Release("a", w.moment()); !there || !past {
		t.Errorf("when it leaves, it is there: %v, in vain: %v", there, past)
	}
	unsure := w.moment()
	unsure.Earliest -= 2e6
	if _, err := r.Renew("a", r.Token, unsure); err != nil {
		t.Errorf("as long as it may be in time, its renewal is told %v", err)
	}
	w.now += 31e6
	if err := r.Break("a", driver.BreakForce, w.moment()); err != nil || stands(r) != "" {
		t.Errorf("an operator's force leaves %q, %v", stands(r), err)
	}
}

func TestMismatchAndBounds(t *testing.T) {
	w := &world{now: 1e15, over: map[string]Liveness{}}
	r := &Record{}
	run(t, r, w, driver.KindSemaphore, 2, "+a")
	_, err := r.Acquire(claim("b", 1), driver.KindSemaphore, 3, true, info, w.moment())
	if !errors.Is(err, driver.ErrMismatch) || !strings.Contains(err.Error(), "semaphore of 2") ||
		!strings.Contains(err.Error(), "semaphore of 3") {
		t.Errorf("a mismatch names both: %v", err)
	}
	for i := range info.MaxWaiters {
		run(t, r, w, driver.KindSemaphore, 2, fmt.Sprintf("+w%d:2", i))
	}
	if _, err := r.Acquire(claim("z", 1), driver.KindSemaphore, 2, true, info, w.moment()); !errors.Is(err,
		driver.ErrQueueFull) {
		t.Errorf("the line is bounded: %v", err)
	}
	if data, err := Encode(r); err != nil || len(data) > MaxData {
		t.Errorf("a full line is encoded: %v", err)
	}
}

func TestCodec(t *testing.T) {
	r, w := &Record{}, &world{now: 1e15, over: map[string]Liveness{}}
	run(t, r, w, driver.KindSemaphore, 3, "+a:2 +b:2 +c +d:2 +e:2 -a +b:2 ~b +d:2 !d")
	if err := r.Break("c", driver.BreakGraceful, w.moment()); err != nil {
		t.Fatal(err)
	}
	r.NotesDroppedUntil, r.Claims[0].ConfirmWindow = w.now, 5*time.Second
	if len(r.Ended) != 3 {
		t.Fatalf("%v", r.Ended)
	}
	data, err := Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Decode("x", data)
	if err != nil || fmt.Sprint(back) != fmt.Sprint(r) {
		t.Errorf("%v\n got %+v\nwant %+v", err, back, r)
	}
	for _, bad := range []string{"", "{", "null", "[]", "hello", `{"holdfast":2,"token":1}`, `{"holdfast":1}{}`,
		`{"holdfast":1,"token":5,"kind":"mutex","limit":1,"claims":[{"id":"a","weight":2,"ttl_ms":1,"allow_ms":1,"state":"waiting"}]}`,
		`{"holdfast":1,"token":5,"kind":"mutex","limit":1,"claims":[{"id":"a","weight":1,"ttl_ms":1,"allow_ms":1,"state":"granted","token":6}]}`,
	} {
		if _, err := Decode("x", []byte(bad)); !errors.Is(err, driver.ErrCorrupt) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	r.Claims[0].Weight = 9
	if _, err := Encode(r); err == nil {
		t.Error("a broken record was encoded")
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
