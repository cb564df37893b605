package tabletest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

func checkAbsent(e *caseEnv) error {
	t, err := e.openClient()
	if err != nil {
		return err
	}
	return expectAbsent(e, t, e.recordName("never"))
}

func checkSwap(e *caseEnv) error {
	ts, err := e.openClients(2)
	if err != nil {
		return err
	}
	now := record.Row{Name: e.recordName("m")}
	for i := range 5 {
		next := newRow(now.Name, now.Version, baseToken+int64(i))
		if now, err = writeRow(e, ts[i%2], next); err != nil {
			return err
		}
		now.Data = next.Data
		for _, t := range ts {
			if err := expectRow(e, t, now); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkSwapCompares(e *caseEnv) error {
	t, err := e.openClient()
	if err != nil {
		return err
	}
	name := e.recordName("m")
	first, err := writeRow(e, t, newRow(name, "", baseToken))
	if err != nil {
		return err
	}
	now, err := writeRow(e, t, newRow(name, first.Version, baseToken+1))
	if err != nil {
		return err
	}
	now.Data, _ = idleData(baseToken + 1)
	for what, version := range map[string]string{"an old version": first.Version,
		"no version, as if it were absent,": ""} {
		got, err := t.Swap(e.ctx, newRow(name, version, baseToken+2))
		switch {
		case !errors.Is(err, record.ErrConflict):
			return fmt.Errorf("a Swap of %s should return ErrConflict, but returned: %v", what, err)
		case got.Version != "" && got.Version != now.Version:
			return fmt.Errorf("a Swap of %s was refused with version %q, but %q is the current one", what, got.Version,
				now.Version)
		case got.Version != "" && string(got.Data) != string(now.Data):
			return fmt.Errorf("a Swap of %s was refused with the current version %q, but with other data", what, got.Version)
		}
		if err := expectRow(e, t, now); err != nil {
			return fmt.Errorf("after a Swap of %s that was refused: %w", what, err)
		}
	}
	return nil
}

// contenders is how many clients write the same record.
const contenders = 8

func checkSwapAtomic(e *caseEnv) error {
	ts, err := e.openClients(contenders)
	if err != nil {
		return err
	}
	for round := range 20 {
		// ten rounds per record; the first round creates it
		now := record.Row{Name: e.recordName(fmt.Sprint(round / 10))}
		if round%10 > 0 {
			if now, err = ts[0].Load(e.ctx, now.Name); err != nil {
				return markUnanswered(err)
			}
		}
		var next [contenders]record.Row
		var errs [contenders]error
		runTogether(contenders, func(i int) {
			next[i], errs[i] = ts[i].Swap(e.ctx, newRow(now.Name, now.Version, baseToken+int64(round*contenders+i)))
		})
		winner := -1
		for i, err := range errs {
			switch {
			case err == nil && winner >= 0:
				return fmt.Errorf("two of %d clients replaced version %q at the same time", contenders, now.Version)
			case err == nil:
				winner = i
			case !errors.Is(err, record.ErrConflict):
				return fmt.Errorf("one of %d clients that replaced version %q got: %w", contenders, now.Version,
					markUnanswered(err))
			}
		}
		if winner < 0 {
			return fmt.Errorf("none of %d clients replaced version %q", contenders, now.Version)
		}
		next[winner].Data, _ = idleData(baseToken + int64(round*contenders+winner))
		if err := expectRow(e, ts[0], next[winner]); err != nil {
			return err
		}
	}
	return nil
}

func runTogether(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() { <-start; f(i) })
	}
	close(start)
	wg.Wait()
}

func checkVersionNew(e *caseEnv) error {
	t, err := e.openClient()
	if err != nil {
		return err
	}
	return writeVersions(e, t, e.recordName("m"), map[string]bool{})
}

func checkVersionRestart(e *caseEnv) error {
	if e.h.Restart == nil {
		return skipped("needs Harness.Restart")
	}
	name, seen := e.recordName("m"), map[string]bool{}
	before, err := e.openClient()
	if err == nil {
		err = writeVersions(e, before, name, seen)
	}
	if err != nil {
		return err
	}
	if err := e.h.Restart(e.ctx); err != nil {
		return fmt.Errorf("restarting the server: %w", err)
	}
	after, err := e.openClient()
	if err != nil {
		return err
	}
	if err := writeVersions(e, after, name, seen); err != nil {
		return fmt.Errorf("after a restart: %w", err)
	}
	return nil
}

// writeVersions creates, replaces and deletes a record, which is absent before and after that. No version may have been
// seen.
func writeVersions(e *caseEnv, t record.Table, name string, seen map[string]bool) (err error) {
	now := record.Row{Name: name}
	for i := range 12 {
		if now, err = writeRow(e, t, newRow(name, now.Version, baseToken+int64(i%2))); err != nil {
			return err
		}
		if seen[now.Version] {
			return fmt.Errorf("version %q was used twice: an old write could be mistaken for a new one", now.Version)
		}
		seen[now.Version] = true
		if i%4 == 3 {
			if err := t.Delete(e.ctx, now); err != nil {
				return fmt.Errorf("deleting the current version %q: %w", now.Version, markUnanswered(err))
			}
			now = record.Row{Name: name}
		}
	}
	return nil
}

func checkDelete(e *caseEnv) error {
	ts, err := e.openClients(2)
	if err != nil {
		return err
	}
	name := e.recordName("m")
	now, err := writeRow(e, ts[0], newRow(name, "", baseToken))
	if err != nil {
		return err
	}
	if err := ts[0].Delete(e.ctx, now); err != nil {
		return fmt.Errorf("deleting the current version %q: %w", now.Version, markUnanswered(err))
	}
	for _, t := range ts {
		if err := expectAbsent(e, t, name); err != nil {
			return fmt.Errorf("after a Delete that succeeded: %w", err)
		}
	}
	for r, err := range ts[1].List(e.ctx, e.prefix, "") {
		if err != nil || r.Name == name {
			return fmt.Errorf("after a Delete that succeeded List yields %q (%w)", r.Name, err)
		}
	}
	if _, err := ts[1].Swap(e.ctx, newRow(name, now.Version, baseToken+1)); !errors.Is(err, record.ErrConflict) {
		return fmt.Errorf("a Swap of a version that was deleted should return ErrConflict, but returned: %v", err)
	}
	_, err = writeRow(e, ts[1], newRow(name, "", baseToken+2))
	return err
}

func checkDeleteCompares(e *caseEnv) error {
	t, err := e.openClient()
	if err != nil {
		return err
	}
	name := e.recordName("m")
	if err := t.Delete(e.ctx, record.Row{Name: name}); err != nil {
		return fmt.Errorf("deleting an absent record: %w", markUnanswered(err))
	}
	first, err := writeRow(e, t, newRow(name, "", baseToken))
	if err != nil {
		return err
	}
	now, err := writeRow(e, t, newRow(name, first.Version, baseToken+1))
	if err != nil {
		return err
	}
	now.Data, _ = idleData(baseToken + 1)
	if err := t.Delete(e.ctx, first); !errors.Is(err, record.ErrConflict) {
		return fmt.Errorf("a Delete of an old version should return ErrConflict, but returned: %v", err)
	}
	if err := expectRow(e, t, now); err != nil {
		return fmt.Errorf("after a Delete of an old version: %w", err)
	}
	return nil
}

func checkDeleteAtomic(e *caseEnv) error {
	ts, err := e.openClients(2)
	if err != nil {
		return err
	}
	for round := range 20 {
		name := e.recordName(fmt.Sprint(round))
		now, err := writeRow(e, ts[0], newRow(name, "", baseToken))
		if err != nil {
			return err
		}
		var errs [2]error
		runTogether(2, func(i int) {
			if i == 0 {
				errs[i] = ts[i].Delete(e.ctx, now)
				return
			}
			_, errs[i] = ts[i].Swap(e.ctx, newRow(name, now.Version, baseToken+1))
		})
		for i, err := range errs {
			// A Swap after the Delete is a conflict, and so is the Delete after the Swap.
			if err != nil && !errors.Is(err, record.ErrConflict) {
				return fmt.Errorf("the %s failed: %w", []string{"Delete", "Swap"}[i], markUnanswered(err))
			}
		}
		if (errs[0] == nil) == (errs[1] == nil) {
			return fmt.Errorf("of a Delete (%v) and a Swap of the same version (%v) exactly one should succeed",
				errs[0], errs[1])
		}
	}
	return nil
}

func checkData(e *caseEnv) error {
	t, err := e.openClient()
	if err != nil {
		return err
	}
	largest := min(record.MaxData, cmp.Or(t.Traits().MaxRecord, record.MaxData))
	unpadded, err := heldData("x")
	if err != nil {
		return err
	}
	for _, meta := range []string{strings.Repeat("x", largest-len(unpadded)+1), strings.Repeat("x", 40_000),
		"\"\\ <&> \u2028\u00e9\U0001F512\t\n\x01 %00 '; --", ""} {
		name := e.recordName(fmt.Sprint(len(meta)))
		data, err := heldData(meta)
		if err != nil {
			return err
		}
		now, err := writeRow(e, t, record.Row{Name: name, Data: data, Token: baseToken})
		if err != nil {
			return err
		}
		now.Data = data
		if err := expectRow(e, t, now); err != nil {
			return err
		}
	}
	return nil
}

// heldData returns the data of a lock with a holder.
func heldData(meta string) ([]byte, error) {
	c := record.Claim{
		ID: "id", Owner: "owner", Meta: meta, Weight: 1, TTL: time.Second, SilenceLimit: time.Second,
		State: record.Granted, Token: baseToken,
	}
	return record.Encode(&record.Record{Kind: driver.KindMutex, Limit: 1, Token: baseToken, Claims: []record.Claim{c}})
}

func checkNames(e *caseEnv) error {
	t, err := e.openClient()
	if err != nil {
		return err
	}
	padding := strings.Repeat("n", 512-len(e.prefix)-1)
	unusual := []string{"a", "A", "a/b", "a%2Fb", "a b", "a.b", "..", ".", "a\\b", "a\nb", "\u00e9", "e\u0301",
		"\u212a",
		"k", "\U0001F512", "a'b\"c", "*", "?", "#", "a+b", "_", "%", padding + "x", padding + "y"}
	want := map[string]record.Row{}
	for i, n := range unusual {
		next := newRow(e.recordName(n), "", baseToken+int64(i))
		now, err := writeRow(e, t, next)
		if err != nil {
			return fmt.Errorf("%w (two names share a record, or the name is not accepted)", err)
		}
		now.Data = next.Data
		want[next.Name] = now
	}
	for name, w := range want {
		if err := expectRow(e, t, w); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return expectListed(e, t, e.prefix, want)
}

func checkList(e *caseEnv) error {
	t, err := e.openClient()
	if err != nil {
		return err
	}
	want := map[string]record.Row{}
	var mu sync.Mutex
	var errs []error
	const writers = 16
	runTogether(writers, func(w int) {
		for i := w; i < e.h.Rows; i += writers {
			next := newRow(e.recordName(fmt.Sprintf("l/%d", i)), "", baseToken+int64(i))
			now, err := writeRow(e, t, next)
			mu.Lock()
			if err != nil {
				errs = append(errs, err)
			}
			now.Data = next.Data
			want[next.Name] = now
			mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	if len(errs) > 0 {
		return errs[0]
	}
	if _, err := writeRow(e, t, newRow(e.recordName("other"), "", baseToken)); err != nil {
		return err
	}
	return expectListed(e, t, e.prefix+"l/", want)
}

// expectListed checks that List yields exactly these rows.
func expectListed(e *caseEnv, t record.Table, prefix string, want map[string]record.Row) error {
	found := map[string]bool{}
	for got, err := range t.List(e.ctx, prefix, "") {
		w, ok := want[got.Name]
		switch {
		case err != nil:
			return fmt.Errorf("listing %q: %q: %w", prefix, got.Name, markUnanswered(err))
		case !ok:
			return fmt.Errorf("listing %q yields %q, which is not under it", prefix, got.Name)
		case found[got.Name]:
			return fmt.Errorf("listing %q yields %q twice", prefix, got.Name)
		case got.Version != w.Version || string(got.Data) != string(w.Data):
			return fmt.Errorf("listing %q yields %q, but differently from Load", prefix, got.Name)
		}
		found[got.Name] = true
	}
	for name := range want {
		if !found[name] {
			return fmt.Errorf("listing %q yields %d of %d records: for example, %q is missing", prefix, len(found),
				len(want), name)
		}
	}
	return nil
}

// keptFor is for how long the case "kept" wants a row to be kept.
const keptFor = 3 * time.Second

func checkKept(e *caseEnv) error {
	t, err := e.openClient()
	if err != nil {
		return err
	}
	if !t.Traits().ExpiresIdle {
		return skipped("the store removes no idle records")
	}
	forEver, err := writeRow(e, t, newRow(e.recordName("forever"), "", baseToken))
	if err != nil {
		return err
	}
	forEver.Data, _ = idleData(baseToken)
	_, late, _ := t.Clock().Bounds()
	brief := newRow(e.recordName("brief"), "", baseToken)
	brief.KeepUntil = late + keptFor.Microseconds()
	if _, err := writeRow(e, t, brief); err != nil {
		return err
	}
	for start := time.Now(); time.Since(start) < keptFor+time.Second; {
		got, err := t.Load(e.ctx, brief.Name)
		if err != nil {
			return fmt.Errorf("loading %q: %w", brief.Name, markUnanswered(err))
		}
		if _, late, _ := t.Clock().Bounds(); got.Version == "" && late < brief.KeepUntil {
			return fmt.Errorf("a row that was to be kept until %d is gone at %d", brief.KeepUntil, late)
		}
		if err := sleepFor(e.ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	if err := expectRow(e, t, forEver); err != nil {
		return fmt.Errorf("a row that was to be kept forever: %w", err)
	}
	return nil
}

// checkClock opens clients at different fractions of a second, to detect a clock with whole seconds, and compares their
// estimates.
func checkClock(e *caseEnv) error {
	var ts []record.Table
	for range 6 {
		t, err := e.openClient()
		if err != nil {
			return err
		}
		if _, err := t.Load(e.ctx, e.recordName("m")); err != nil {
			return markUnanswered(err)
		}
		ts = append(ts, t)
		if err := sleepFor(e.ctx, 170*time.Millisecond); err != nil {
			return err
		}
	}
	last := make([]int64, len(ts))
	for range 20 {
		var early, late [6]int64
		start := time.Now()
		for i, t := range ts {
			floor := t.TokenFloor()
			if floor < last[i] {
				return fmt.Errorf("the floor of the tokens fell from %d to %d", last[i], floor)
			}
			last[i] = floor
			c := t.Clock()
			if c == nil {
				return nil // no clock ends a claim
			}
			var known bool
			if early[i], late[i], known = c.Bounds(); !known {
				return errors.New("after a reply, the time of the store's clock is not known")
			}
		}
		took := time.Since(start).Microseconds() + 100
		for i := range ts {
			for k := range ts {
				if early[i] > late[k]+took {
					return fmt.Errorf("by one client, the store's clock is at %d or later, by another at %d or earlier: "+
						"one of the errors stated is too small", early[i], late[k])
				}
			}
		}
		if err := sleepFor(e.ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func sleepFor(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func checkContextEnds(e *caseEnv) error {
	t, err := e.openClient()
	if err != nil {
		return err
	}
	now, err := writeRow(e, t, newRow(e.recordName("m"), "", baseToken))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	return callEach(e, t, ctx, now, func(method string, err error) error {
		if err == nil || errors.Is(err, record.ErrConflict) || driverutil.IsFinal(err) {
			return fmt.Errorf("%s under a context that has ended returned: %v", method, err)
		}
		return nil
	})
}

func checkClosed(e *caseEnv) error {
	t, err := e.openClient()
	if err != nil {
		return err
	}
	now, err := writeRow(e, t, newRow(e.recordName("m"), "", baseToken))
	if err != nil {
		return err
	}
	if err := t.Close(); err != nil {
		return fmt.Errorf("closing: %w", err)
	}
	if err := t.Close(); err != nil && !errors.Is(err, driver.ErrClosed) {
		return fmt.Errorf("closing again: %w", err)
	}
	return callEach(e, t, e.ctx, now, func(method string, err error) error {
		if !errors.Is(err, driver.ErrClosed) {
			return fmt.Errorf("%s after Close should return ErrClosed, but returned: %v", method, err)
		}
		return nil
	})
}

// callEach calls every method that sends a request to the store.
func callEach(
	e *caseEnv, t record.Table, ctx context.Context, now record.Row, check func(method string, err error) error,
) error {
	_, err := t.Load(ctx, now.Name)
	if err := check("Load", err); err != nil {
		return err
	}
	_, err = t.Swap(ctx, newRow(now.Name, now.Version, baseToken+1))
	if err := check("Swap", err); err != nil {
		return err
	}
	if err := check("Delete", t.Delete(ctx, now)); err != nil {
		return err
	}
	err = nil
	for _, err = range t.List(ctx, e.prefix, "") {
		if err != nil {
			break
		}
	}
	return check("List", err)
}
