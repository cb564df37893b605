package record

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Decisions about the ledger.
//
// Runs that nobody was told of. If a Begin is given up while its request is on its way, its run may exist. The client
// then withdraws the claim (Claim.Withdrawn), and the step that removes the claim takes the run out of the history: no
// attempt is used up, and no pause begins. The run before is still there, since it stays in the record while one is
// open. Rejected: pages for all runs but the open one. Each retry would cost one or two requests more, and a late
// report or a withdrawn run would have to read and write pages.
//
// Marks are keys under leases, or ephemeral nodes, that nobody keeps alive. Each lease is used for a third of a TTL
// (driverutil.Rotation), and later renewals write their marks under the next one. Rejected: one session for the whole
// life of a client, which would cost less: the mark of a run that was lost, while its client lives on with other runs,
// would exist for as long as the client does, and block the key. Rejected: the clocks that these servers show (the Date
// of etcd's HTTP port, the time of a ZooKeeper write). Each member shows its own, and any of them may be set. A lease
// and a session are timed by the leader, on a clock that is never set.
//
// A page is kept until its own last run has been kept for long enough, since it is written long before the end of the
// last run is known. It may vanish before the record, which then shows fewer old runs. It may outlive a record that was
// kept for less, and a later history of the key replaces it.
//
// What is stored to be compared later (the ends of runs, pauses, how long records are kept) goes by the table's Clock,
// and where there is none, by an answer of ReadClock that is at most a minute old. A time slot is decided by ReadClock:
// it does not matter there if a server's clock steps, since a slot that has succeeded has succeeded. Rejected:
// ReadClock for all on all stores, because it would cost each end of a run a round trip, for the clock that the replies
// show anyway. Rejected: one estimate with an error, in which a negative error meant "for tokens only": a caller that
// took its absolute value removed histories by a wall clock.

// NewLedger makes a run ledger of a table that has no locks in it. Closing the ledger closes the table.
//
// A key is a record with a history: see [RunLog]. A run begins and ends in one swap each, together with its claim, so a
// ledger needs no rules of its own for who may run, who has stopped, and what a lost reply means. Only the latest runs
// are in the record itself. Older ones move to pages, rows of their own that are written once. Both are bounded by
// bytes: see runRoom.
func NewLedger(table Table) driver.Ledger {
	e := newEngine(table)
	e.keepsRuns = true
	e.info.Kinds = []driver.Kind{driver.KindMutex}
	a := &e.info.Abilities
	a.Detach, a.SetWeight, a.NewestOnly, a.Permits, a.Ledger = false, false, false, false, false
	e.info.MaxName -= len(pageName("", maxPages))
	e.room = newRunRoom(e.maxRecord)
	e.info.MaxMeta, e.info.MaxRunResult = min(e.info.MaxMeta, e.room.maxMeta()), e.room.maxResult()
	return &ledger{engine: e}
}

const (
	maxPages      = 1 << 40 // only for the length of a page's name
	deletesPerRun = 4       // pages that a new run removes, so that it does not take long
	pageLoads     = 16      // pages that are read at the same time
)

// pageMark separates a key from the number of a page. Keys do not contain it.
const pageMark = "\x1f"

func pageName(key string, page int64) string { return key + pageMark + strconv.FormatInt(page, 10) }

// checkClaim reports what is wrong with a claim. It begins a run if and only if this is the engine of a ledger.
func (e *engine) checkClaim(c driver.Claim) error {
	if !e.keepsRuns {
		return c.Check(e.info)
	}
	terms := c.Run
	c.Run = nil
	if err := c.Check(e.info); err != nil {
		return err
	}
	switch {
	case terms == nil || c.Kind != driver.KindMutex || c.Fair || c.Detached:
		return fmt.Errorf("%w: a ledger takes only claims that begin a run", driver.ErrInvalid)
	}
	if err := checkKey(c.Name); err != nil {
		return err
	}
	return terms.Check()
}

// checkKey refuses the names of pages: they are not keys, and an operator's change would destroy a part of a history.
func checkKey(key string) error {
	if strings.Contains(key, pageMark) {
		return fmt.Errorf("%w: a key must not contain the control character U+001F", driver.ErrInvalid)
	}
	return nil
}

// ledger is the driver.Ledger of one table.
type ledger struct{ *engine }

// Acquire costs one swap for a key that was never run, and one load more if the table does not return the row that
// refuses a swap. The row of a key that is refused is not remembered: a key that has succeeded does not come back.
func (l *ledger) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	g, err := l.engine.Acquire(ctx, c)
	var refused *driver.RunError
	if errors.As(err, &refused) {
		l.forgetRow(c.Name)
	}
	return g, err
}

// Detach is refused: nobody would report the outcome of a detached run.
func (l *ledger) Detach(context.Context, driver.Grant, time.Duration) error {
	return driver.ErrUnsupported
}

// FinishRun costs one swap if the row is as this client last saw it.
func (l *ledger) FinishRun(ctx context.Context, g driver.Grant, o driver.RunOutcome) error {
	o, err := o.Check(l.info)
	if err != nil {
		return err
	}
	o.Error = l.room.cutError(o.Error)
	var outcome error
	err = l.applyStep(ctx, g.Name, true, func(rec *Record, in StepInput, _ bool) error {
		var changed bool
		changed, outcome = rec.Finish(g.ID, g.Token, o, in)
		if changed || outcome == nil {
			// What is written says also that a report came too late. An outcome that is there already is written once
			// more: it was read, and what can be read may not be durable yet.
			return nil
		}
		return outcome
	})
	if err == nil {
		err = outcome
		l.sweepIfDue(l.clock.Now())
	}
	l.forgetRow(g.Name)
	return err
}

// ReadRuns costs one load, and one for each page of older runs that is needed, or up to sixteen at once: how many
// runs a page has is known when it was read.
func (l *ledger) ReadRuns(ctx context.Context, key string, last int) (driver.RunHistory, error) {
	if err := checkKey(key); err != nil {
		return driver.RunHistory{Key: key}, err
	}
	ctx, stop := l.life.Bind(ctx)
	defer stop()
	row, rec, err := l.loadRecord(ctx, key)
	if err != nil {
		return driver.RunHistory{Key: key}, err
	}
	l.forgetRow(key)
	h := l.describeRuns(row, rec)
	if rec.Runs == nil {
		return h, nil
	}
	end := rec.Runs.Pages
	for err == nil && end > rec.Runs.Dropped && (last == 0 || len(h.Runs) < last) {
		first := max(rec.Runs.Dropped, end-pageLoads)
		var older []driver.Run
		older, err = l.loadPages(ctx, key, first, end)
		h.Runs, end = append(older, h.Runs...), first
	}
	return h, l.errorOrClosed(err)
}

// describeRuns shows the recent runs of a key. A run whose claim has expired is abandoned, although the record says so
// only after the next write.
func (l *ledger) describeRuns(row Row, rec *Record) driver.RunHistory {
	now := rec.clone()
	now.expireAndPromote(l.stepInput(row, rec), "")
	h := driver.RunHistory{Key: row.Name}
	if now.Runs != nil {
		h.Runs = now.Runs.Runs
		h.RetryAllowed = len(h.Runs) > 0 && now.Runs.RetryAfter == now.Runs.lastRun().Attempt
	}
	return h
}

// loadPages reads the runs of the pages from first to before end, which are at most pageLoads, at the same time.
func (l *ledger) loadPages(ctx context.Context, key string, first, end int64) (all []driver.Run, err error) {
	var pages [pageLoads][]driver.Run
	var errs [pageLoads]error
	var loads sync.WaitGroup
	for i := range end - first {
		loads.Go(func() { pages[i], errs[i] = l.loadPage(ctx, pageName(key, first+i)) })
	}
	loads.Wait()
	return slices.Concat(pages[:]...), errors.Join(errs[:]...)
}

// loadPage reads a page of ended runs. A page that is missing has none: a concurrent write may have removed it.
func (l *ledger) loadPage(ctx context.Context, name string) ([]driver.Run, error) {
	row, err := l.table.Load(ctx, name)
	if err != nil {
		return nil, err
	}
	page, err := decodeRow(row)
	if err != nil || page.Runs == nil {
		return nil, err
	}
	return page.Runs.Runs, nil
}

// ListRuns shows each key with its last run.
func (l *ledger) ListRuns(ctx context.Context, prefix string) iter.Seq2[driver.RunHistory, error] {
	return func(yield func(driver.RunHistory, error) bool) {
		for row, err := range l.table.List(ctx, prefix, "") {
			if strings.Contains(row.Name, pageMark) {
				continue
			}
			h := driver.RunHistory{Key: row.Name}
			var rec *Record
			if err == nil {
				rec, err = decodeRow(row)
			}
			if err == nil {
				if h = l.describeRuns(row, rec); len(h.Runs) == 0 {
					continue
				}
				h.Runs = h.Runs[len(h.Runs)-1:]
			}
			if !yield(h, l.errorOrClosed(err)) || err != nil && row.Name == "" {
				return
			}
		}
	}
}

// RetryRun costs one load and one swap. After a swap of unknown outcome, a run that has begun since, or ended, shows
// that the retry was not needed or is used up: to allow another one would let the key run twice.
func (l *ledger) RetryRun(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	defer l.forgetRow(key)
	var last int64
	return l.applyStep(ctx, key, false, func(rec *Record, in StepInput, again bool) error {
		if again && rec.Runs.lastRun().Attempt != last {
			return errDone
		}
		last = rec.Runs.lastRun().Attempt
		return rec.AllowRetry(in)
	})
}

// ForgetRuns removes the history in the record, which is one step, and then the pages. The record itself is kept for a
// while, because of its token.
func (l *ledger) ForgetRuns(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	ctx, stop := l.life.Bind(ctx)
	defer stop()
	defer l.forgetRow(key)
	var removed *RunLog
	var upTo int64
	err := l.applyStep(ctx, key, false, func(rec *Record, in StepInput, again bool) error {
		rec.expireAndPromote(in, "")
		switch last := rec.Runs.lastRun(); {
		case last.Attempt == 0, again && rec.Runs.firstToken() > upTo: // the history of today began after it was forgotten
			return errDone
		case last.State == driver.RunStarted:
			return &driver.RunError{Reason: driver.ErrInProgress, Run: last}
		}
		removed, upTo, rec.Runs = rec.Runs, rec.Token, &RunLog{}
		return nil
	})
	if err == nil && removed != nil {
		err = l.errorOrClosed(l.deletePages(ctx, key, removed, upTo))
	}
	return err
}

// deletePages removes all pages of a history that was removed. It leaves those of a later history of the key, whose
// tokens are larger than upTo.
func (e *engine) deletePages(ctx context.Context, key string, runs *RunLog, upTo int64) error {
	if runs == nil {
		return nil
	}
	for page := runs.Dropped; page < runs.Pages; page++ {
		_, err := e.deletePageIf(ctx, pageName(key, page), func(l *RunLog) bool { return l.firstToken() <= upTo })
		if err != nil {
			return err
		}
	}
	return nil
}

// deletePageIf removes a page with such runs, or one that cannot be read. It reports whether the page has gone.
func (e *engine) deletePageIf(ctx context.Context, name string, hasSuch func(*RunLog) bool) (gone bool, err error) {
	row, err := e.table.Load(ctx, name)
	if err != nil || row.Version == "" {
		return err == nil, err
	}
	row.Name = name
	if page, err := decodeRow(row); err == nil && !hasSuch(page.Runs) {
		return false, nil
	}
	err = e.table.Delete(ctx, row)
	return err == nil, err
}

// ReadClock costs what the table's needs.
func (l *ledger) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	ctx, stop := l.life.Bind(ctx)
	defer stop()
	now, maxError, err = l.table.ReadClock(ctx)
	return now, maxError, l.errorOrClosed(err)
}

// deleteOrphanPage removes a page whose history was removed by a client that has not finished.
func (e *engine) deleteOrphanPage(ctx context.Context, page Row, key string) {
	if row, err := e.table.Load(ctx, key); err == nil && row.Version == "" {
		_ = e.table.Delete(ctx, page) // the next sweep tries again
	}
}

// makeRoomForRuns moves the oldest runs of a record to a page if they take too much of it, and removes what is beyond
// the number of runs to keep. It is called before the record is written, and does its own writes first: if the record
// is then not written, the page has runs that are in the record, too, and the next attempt writes the same page.
//
// The run before the one that begins is always kept. If nobody is told of that one, it is the last one again.
func (e *engine) makeRoomForRuns(ctx context.Context, key string, rec *Record, keep int64) error {
	l, old := rec.Runs, e.room.countOld(rec.Runs.Runs)
	if err := e.room.checkRun(rec); err != nil {
		return err
	}
	if keep > 0 {
		// The run that begins does not count: the record may not be written, and the run may be withdrawn.
		first, upTo := l.lastRun().Attempt-keep, l.firstToken()
		isPast := func(page *RunLog) bool { return page.firstToken() <= upTo && page.lastRun().Attempt < first }
		looks := old > 0 || l.firstAttempt() <= first // otherwise the pages are needed, or were when the last one was written
		for n := 0; looks && n < deletesPerRun && l.Dropped < l.Pages; n++ {
			gone, err := e.deletePageIf(ctx, pageName(key, l.Dropped), isPast)
			if err != nil {
				return err
			}
			if looks = gone; gone {
				l.Dropped++
			}
		}
		if l.Dropped == l.Pages {
			l.Runs = slices.DeleteFunc(l.Runs, func(r driver.Run) bool { return r.Attempt < first })
			old = e.room.countOld(l.Runs)
		}
	}
	if old == 0 {
		return nil
	}
	if err := e.writePage(ctx, pageName(key, l.Pages), rec.Token, l.KeepFor, l.Runs[:old]); err != nil {
		return err
	}
	l.Pages++
	l.Runs = l.Runs[old:]
	return nil
}

// writePage writes a page. If another attempt has written the same one, it is written once more: it was read, and what
// can be read may not be durable yet. It refuses to replace a page of a later history: then the record that the caller
// has is old.
//
// If the store removes rows by itself, it removes a page when its last run has been kept for long enough, even if newer
// runs of the key are still kept. Otherwise each end of a run would have to write all pages.
func (e *engine) writePage(
	ctx context.Context, name string, token int64, keepFor time.Duration, runs []driver.Run,
) error {
	row, err := e.encodeRow(Row{Name: name}, &Record{Token: token, Runs: &RunLog{Runs: runs}}, false)
	if err != nil {
		return err
	}
	if keepFor > 0 {
		row.KeepUntil = e.keepUntil(runs[len(runs)-1].EndedAt.Add(keepFor).UnixMicro())
	}
	if _, err = e.table.Swap(ctx, row); !errors.Is(err, ErrConflict) {
		return err
	}
	existing, err := e.table.Load(ctx, name)
	if err != nil {
		return err
	}
	if page, err := decodeRow(existing); err == nil && page.Runs.firstToken() > runs[0].Token {
		return ErrConflict
	}
	row.Version = existing.Version // the same page, or one of a history that was removed
	_, err = e.table.Swap(ctx, row)
	return err
}
