package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// slotsFrom returns a value of --every whose slots are about 14 years long, so that one starts at a time, to within
// four seconds before it.
func slotsFrom(at time.Time) (every string, start time.Time) {
	quarter := at.Unix() / 4
	return fmt.Sprintf("%ds", quarter), time.Unix(4*quarter, 0).UTC()
}

// historyOf returns the runs of a key.
func (w *workspace) historyOf(key string) []holdfast.RunInfo {
	w.Helper()
	client, err := holdfast.Open(w.Context(), w.store, nil)
	if err != nil {
		w.Fatal(err)
	}
	defer client.Close()
	runs, err := client.Ledger(defaultLedger, nil).History(w.Context(), key)
	if err != nil {
		w.Fatal(err)
	}
	return runs
}

// checkStates checks the states of the runs of a key.
func (w *workspace) checkStates(key string, want ...holdfast.RunState) []holdfast.RunInfo {
	w.Helper()
	runs := w.historyOf(key)
	var got []holdfast.RunState
	for _, r := range runs {
		got = append(got, r.State)
	}
	if !slices.Equal(got, want) {
		w.Errorf("the runs of %s are %q, not %q", key, got, want)
	}
	return runs
}

// TestOnceSlotMissed: a slot whose first run did not begin in time is missed and exits 0; --catch-up runs it.
func TestOnceSlotMissed(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	every, slot := slotsFrom(time.Now().Add(-time.Hour))
	key := func(job string) string { return job + "@" + formatSlot(slot) }
	once := func(args ...string) result {
		return w.runProgram(append([]string{"once", "--every", every}, args...)...)
	}
	once("--start-within", "30m", "a", "echo", "ran").
		check(t, 0, key("a")+" is not run: its slot started 1h0m ago", "within 30m0s", "see --start-within")
	once("-q", "--start-within", "30m", "a", "echo", "ran").check(t, 0, key("a")+" is not run") // so that cron sends a mail
	if runs := w.historyOf(key("a")); len(runs) > 0 {
		t.Errorf("runs: %+v", runs)
	}
	// What has begun in time can be tried again later.
	if r := once("--start-within", "2h", "a", "sh", "-c", "echo ran; exit 3"); r.code != 3 || r.out != "ran\n" {
		t.Error(r.description)
	}
	if r := once("--start-within", "1m", "a", "sh", "-c", "echo $HOLDFAST_ATTEMPT $HOLDFAST_SLOT"); r.out != "2 "+formatSlot(slot)+"\n" {
		t.Error(r.description)
	}
	once("a", "echo", "ran").check(t, 0, "it has succeeded, in attempt 2")
	// Without a limit, a slot of --every is run whenever the program is first started in it.
	if r := once("b", "echo", "ran"); r.code != 0 || r.out != "ran\n" {
		t.Error(r.description)
	}
	once("b", "echo", "ran").check(t, 0, "it has succeeded")
	// A schedule has a limit. This one has a slot per year.
	year := time.Now().AddDate(0, 0, -2)
	cron := fmt.Sprintf("0 0 %d %d *", year.Day(), year.Month())
	if r := w.runProgram("once", "--schedule", cron, "--tz", "Asia/Tokyo", "c", "true"); r.code != 0 ||
		!strings.Contains(r.err, "T15:00:00Z is not run") || !strings.Contains(r.err, "within 10m0s") {
		t.Error(r.description)
	}
	r := w.newProgram("once", "--schedule", cron, "--tz", "Asia/Tokyo", "--catch-up", "c", "sh", "-c",
		"echo $HOLDFAST_SLOT")
	r.cmd.Env = w.testEnvironment("TZ=America/New_York") // which changes nothing
	if got := r.launch().wait(); got.code != 0 || !strings.HasSuffix(got.out, "T15:00:00Z\n") {
		t.Error(got.description)
	}
}

// TestOnceStartedEarly: a program that is started shortly before a slot waits for it.
func TestOnceStartedEarly(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	every, slot := slotsFrom(time.Now().Add(6 * time.Second))
	r := w.runProgram("once", "--every", every, "--events", "record", "a", "sh", "-c", "echo $HOLDFAST_SLOT")
	if r.code != 0 || r.out != formatSlot(slot)+"\n" {
		t.Errorf("want the slot %v; %s", slot, r.description)
	}
	if at := w.eventTime("record", "command_started"); at.Before(slot) {
		t.Errorf("the slot starts at %v, and the command was started at %v", slot, at)
	}
}

func TestTimeToNextSlot(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		length, left time.Duration
		early        bool
	}{
		{24 * time.Hour, time.Minute, true}, {24 * time.Hour, time.Minute + 1, false}, {24 * time.Hour, 23 * time.Hour, false},
		{time.Minute, 6 * time.Second, true}, {time.Minute, 6*time.Second + 1, false}, {time.Second, time.Second, false},
		{0, 0, false}, // no other slot
	} {
		slot := holdfast.Slot{Start: start}
		if c.length > 0 {
			slot.End = start.Add(c.length)
			slot.Now = slot.End.Add(-c.left)
		}
		if left, early := timeToNextSlot(slot); early != c.early || c.early && left != c.left {
			t.Errorf("slots of %v, %v before the next: %v, %v", c.length, c.left, left, early)
		}
	}
}

// newLedgerAt opens a ledger on a store whose clock shows a given time.
func newLedgerAt(t *testing.T, now time.Time) *holdfast.Ledger {
	t.Helper()
	began := time.Now()
	ahead := time.Duration(0)
	sinceBegin := func() time.Duration { return time.Since(began) }
	m := memory.New(&memory.Options{Clock: driver.Clock{
		Monotonic: sinceBegin, Boottime: func() time.Duration { return sinceBegin() + ahead },
	}})
	ahead = time.Until(now) // after the store was made, which starts with this machine's clock
	client, err := holdfast.New(m.Open(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client.Ledger(defaultLedger, nil)
}

// TestOnceSlotByStoresClock: the slot, whether it has passed, and how long to wait for it are decided by the store's
// clock. The machine's is years away.
func TestOnceSlotByStoresClock(t *testing.T) {
	t.Parallel()
	daily, err := parseSchedule("0 3 * * *", "Asia/Tokyo")
	if err != nil {
		t.Fatal(err)
	}
	job := onceJob{key: "job", schedule: daily, startWithin: 10 * time.Minute,
		opts: holdfast.LedgerOptions{TTL: holdfast.DefaultTTL}}
	for _, c := range []struct{ now, slot, missed string }{
		{"2031-05-01T18:05:00Z", "2031-05-01T18:00:00Z", ""},
		{"2031-05-01T18:11:00Z", "2031-05-01T18:00:00Z", "its slot started 11m0s ago"},
		{"2031-05-01T17:58:00Z", "2031-04-30T18:00:00Z", "its slot started 23h58m ago"},
		{"2031-05-01T17:59:59.9Z", "2031-05-01T18:00:00Z", ""},
		{"2039-12-31T18:09:59Z", "2039-12-31T18:00:00Z", ""},
	} {
		now, err := time.Parse(time.RFC3339Nano, c.now)
		if err != nil {
			t.Fatal(err)
		}
		slot, err := job.chooseSlot(t.Context(), newLedgerAt(t, now), nil)
		if formatSlot(slot.Start) != c.slot || (err == nil) != (c.missed == "") ||
			err != nil && !strings.Contains(err.Error(), c.missed) {
			t.Errorf("at %s: slot %v, %v", c.now, slot.Start, err)
		}
	}
	// A signal ends the wait for the next slot.
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	cancel(stopped)
	if _, err := job.chooseSlot(ctx, newLedgerAt(t, time.Date(2031, 5, 1, 17, 59, 30, 0, time.UTC)), nil); err == nil ||
		!errors.Is(err, stopped) {
		t.Errorf("got %v", err)
	}
}

// hungStore is a store that does not answer when it is asked for the time.
type hungStore struct{ driver.Store }

type hungLedger struct{ driver.Ledger }

func (s hungStore) OpenLedger(ctx context.Context) (driver.Ledger, error) {
	l, err := s.Store.OpenLedger(ctx)
	return hungLedger{l}, err
}

func (hungLedger) ReadClock(ctx context.Context) (time.Time, time.Duration, error) {
	<-ctx.Done()
	return time.Time{}, 0, ctx.Err()
}

// TestOnceStoreDoesNotAnswer: the slot is asked for as long as run tries to reach a store, and no longer.
func TestOnceStoreDoesNotAnswer(t *testing.T) {
	t.Parallel()
	client, err := holdfast.New(hungStore{memory.New(nil).Open()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	job := onceJob{key: "job", schedule: holdfast.Every(time.Hour), opts: holdfast.LedgerOptions{TTL: time.Second}}
	_, err = job.chooseSlot(t.Context(), client.Ledger(defaultLedger, nil), nil)
	var exit *exitError
	if !errors.As(err, &exit) || exit.code != exitUnavailable || !errors.Is(err, errNoAnswer) {
		t.Errorf("got %v", err)
	}
}

// TestOnceSlotOnServerWithOtherClock: the program itself asks its store for the slot.
func TestOnceSlotOnServerWithOtherClock(t *testing.T) {
	t.Parallel()
	server, err := dynamodbtest.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	proxy, err := dynamodbtest.NewProxy(server.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	w := newWorkspace(t)
	w.store = "dynamodb://jobs?region=eu-central-1&create=true&endpoint=" + proxy.Endpoint
	once := func(args ...string) result {
		r := w.newProgram(append([]string{"once"}, args...)...)
		r.cmd.Env = w.testEnvironment("AWS_ACCESS_KEY_ID=x", "AWS_SECRET_ACCESS_KEY=x")
		return r.launch().wait()
	}
	for i, c := range []struct{ shift, start time.Duration }{
		{4 * time.Minute, 2 * time.Minute},   // by the store's clock the slot has started; by the machine's it will
		{-4 * time.Minute, -2 * time.Minute}, // the reverse
	} {
		proxy.Shift(c.shift)
		every, want := slotsFrom(time.Now().Add(c.start))
		if length, err := time.ParseDuration(every); c.shift < 0 && err == nil {
			want = want.Add(-length)
		}
		for range 2 {
			once("--every", every, fmt.Sprint("job", i), "sh", "-c", "echo $HOLDFAST_SLOT >>slots").check(t, 0)
		}
		if got := w.readFile(w.filePath("slots")); got != formatSlot(want)+"\n" {
			t.Errorf("the store's clock is ahead by %v: want one run of the slot %v, got %q", c.shift, want, got)
		}
		w.writeFile("slots", "")
	}
	once("--store", w.store+"&layout=awslock&partition-key=primary_id", "k", "true").check(t, 64, "keeps no runs")
	// A table that is shared with plain workers is one ledger. The clock of the machine is right again.
	proxy.Shift(0)
	w.store = strings.Replace(w.store, "//jobs?", "//events?layout=ledger&", 1)
	once("k", "true").check(t, 64, `the table is the ledger "events", and not "once"`)
	once("--ledger", "events", "k", "sh", "-c", "exit 3").check(t, 3)
	once("--ledger", "events", "--keep-output", "4k", "k", "echo", "ran").check(t, 0)
	once("--ledger", "events", "k", "echo", "ran").check(t, 0, "it has succeeded, in attempt 2")
	// Plain workers take no locks, so nothing keeps slots apart.
	once("--ledger", "events", "--every", "24h", "s", "touch", "ran").check(t, 64, "could overlap: give --allow-overlap if they may")
	once("--ledger", "events", "--every", "24h", "--allow-overlap", "s", "echo", "ran").check(t, 0)
}

// TestCappedStart: a --start-within of more than half of the slot is half of it, and the message says so.
func TestCappedStart(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	ledger := w.openLedger()
	start := time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)
	slot := holdfast.Slot{Start: start, End: start.Add(time.Hour), Now: start.Add(40 * time.Minute)}
	for within, says := range map[time.Duration]string{
		20 * time.Minute: "within 20m0s; see --start-within",
		50 * time.Minute: "within 30m0s (half of the slot, which is the most); see --start-within",
	} {
		j := onceJob{key: "job", startWithin: within, opts: holdfast.LedgerOptions{TTL: holdfast.DefaultTTL}}
		if err := j.checkMissed(t.Context(), ledger, slot); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v, want %s", within, err, says)
		}
	}
}

// TestLastStart: a slot waits for another one until it ends, or for as long as --start-within allows.
func TestLastStart(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)
	for _, c := range []struct{ length, late, within, want time.Duration }{
		{time.Hour, 0, 0, time.Hour},
		{time.Hour, 0, 10 * time.Minute, 10 * time.Minute},
		{time.Hour, 5 * time.Minute, 50 * time.Minute, 30 * time.Minute},
		{time.Hour, 20 * time.Minute, 10 * time.Minute, time.Hour}, // its first run began in time
	} {
		j := onceJob{startWithin: c.within}
		got := j.lastStart(holdfast.Slot{Start: start, End: start.Add(c.length), Now: start.Add(c.late)})
		if got.Sub(start) != c.want {
			t.Errorf("%+v: %v", c, got.Sub(start))
		}
	}
}

// TestKeepForOfAllSlots: a schedule is refused if any of its slots takes longer than the key is remembered, whichever
// is the present one.
func TestKeepForOfAllSlots(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	monday := time.Date(2026, 11, 23, 3, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		schedule string
		keepFor  time.Duration
		want     time.Duration
	}{
		{"0 3 * * 1-5", 30 * time.Hour, 3 * day},
		{"0 3 * * 1-5", 3 * day, 0},
		{"0 3 * * *", 30 * time.Hour, 0},
		{"0 3 * * *", 23 * time.Hour, day},
		{"0 3 23 * *", 30 * day, 31 * day}, // that of November has 30 days
		{"* * * * *", time.Minute, 0},
		{"* * * * *", time.Hour, 0},
		{"0 3 * * 1-5", 0, 0}, // forever
	} {
		schedule, err := parseSchedule(c.schedule, "UTC")
		if err != nil {
			t.Fatal(err)
		}
		if _, got := findLongSlot(schedule, monday, c.keepFor); got != c.want {
			t.Errorf("%s, kept for %v: got a slot of %v, want %v", c.schedule, c.keepFor, got, c.want)
		}
	}
	if _, got := findLongSlot(holdfast.Every(time.Hour), monday, time.Minute); got != time.Hour {
		t.Errorf("--every 1h, kept for a minute: got %v", got)
	}
}

// smallRuns is a store whose ledger has room for results of 100 bytes.
type smallRuns struct{ driver.Store }

type smallRunLedger struct{ driver.Ledger }

func (s smallRuns) OpenLedger(ctx context.Context) (driver.Ledger, error) {
	l, err := s.Store.OpenLedger(ctx)
	return smallRunLedger{l}, err
}

func (l smallRunLedger) Info() driver.Info {
	info := l.Ledger.Info()
	info.MaxRunResult = 100
	return info
}

// TestOnceKeepsTooMuch: more output than the store has room for is refused before anything is run.
func TestOnceKeepsTooMuch(t *testing.T) {
	t.Parallel()
	client, err := holdfast.New(smallRuns{memory.New(nil).Open()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, size := range []int{0, 100, 101} {
		job := onceJob{key: "job", keepOutput: size, opts: holdfast.LedgerOptions{TTL: time.Minute}}
		err := job.checkOutput(t.Context(), client.Ledger(defaultLedger, nil))
		var exit *exitError
		if refused := errors.As(err, &exit) && exit.code == exitUsage; refused != (size > 100) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}
