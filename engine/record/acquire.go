package record

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Acquire takes a lock in one round trip if the row is as this client last saw it, and in two otherwise.
func (e *engine) Acquire(ctx context.Context, c driver.Claim) (driver.Grant, error) {
	if err := e.checkClaim(c); err != nil {
		return driver.Grant{}, err
	}
	ctx, done := e.life.Bind(ctx)
	defer done()
	a := &acquire{engine: e, claim: c}
	a.own = groupStep{claim: c.ID, call: a}
	a.queue.joins = c.Wait && (c.Fair || c.Kind != driver.KindMutex)
	a.row, a.rec = e.recallRow(c.Name)
	if e.isClockStale() || e.isReadingStale() {
		if err := a.loadRow(ctx); err != nil {
			return driver.Grant{}, a.finalError(ctx, err)
		}
	}
	for {
		grant, done, err := a.step(ctx)
		if done || err != nil {
			return grant, a.finalError(ctx, err)
		}
	}
}

// acquire is one call of Acquire: the claim, the row as this call knows it, and what happened so far.
type acquire struct {
	*engine
	claim driver.Claim

	row    Row
	rec    *Record
	source rowSource

	own        groupStep // what it hands in to the lock's writer
	unresolved unresolvedWrite
	queue      queueState
	backoff    backoff
}

// rowSource is how a call of Acquire knows the row on which it steps. A step on a row that is old does no harm: its swap
// is refused. But nothing is refused to the caller on account of such a row.
type rowSource int

const (
	fromMemory rowSource = iota // this client remembers it, from an earlier call
	fromOthers                  // a notice, or another call of this client, has brought it during this call; it may be late
	fromStore                   // it was loaded or written in this call
)

// unresolvedWrite is what is known of swaps of this call that had no reply.
type unresolvedWrite struct {
	unknown  bool   // the last of them may have taken effect, or may still do so
	replaces string // the version that it would replace
	count    int64  // how many swaps had an unknown outcome
	unsent   bool   // the last swap certainly did not reach the store
}

func (u *unresolvedWrite) noteUnknown(version string) {
	u.unknown, u.replaces = true, version
	u.count++
}

// noteConfirmed records that a later swap was acknowledged. The version that the unknown one expects exists no more.
func (u *unresolvedWrite) noteConfirmed() { u.unknown, u.unsent = false, false }

// resolve looks for the outcome in a row that was just loaded. If the version has changed and the claim is not in the
// record, the swap cannot take effect any more. If the claim is there, that proves nothing yet: see step.
func (u *unresolvedWrite) resolve(row Row, hasClaim bool) {
	if u.unknown && row.Version != u.replaces && !hasClaim {
		u.unknown = false
	}
}

// queueState is the claim's place in the store's queue.
type queueState struct {
	joins     bool           // the claim joins the store's queue while it waits; otherwise it only watches the lock
	renewedAt driver.Instant // when its last acknowledged write was started
	beat      int64          // the beat of that write
	watching  watching       // what it has seen while it only watched
}

// isPlainWaiter reports whether the claim waits, and may be overtaken. A run never joins the queue of its ledger.
func (a *acquire) isPlainWaiter() bool {
	return a.claim.Wait && !a.claim.Fair && a.claim.Kind == driver.KindMutex && a.claim.Run == nil
}

// watching is what a claim has seen of a lock that it watches from outside of the queue.
type watching struct {
	limit     time.Duration  // how long it watches while the lock goes to others
	token     int64          // the lock's last token when the claim last looked; 0: it has not seen it held
	since     driver.Instant // when it first saw that the lock had gone to another holder
	overtaken bool           // it has seen that
	over      bool           // it has seen that for so long that it must join the queue
	foreign   bool           // it has seen a foreign client hold the lock, which a queue would keep out
	holders   []string       // where clients take turns at looking: those that it has seen hold the lock
	returned  bool           // one of them has had the lock again
}

const (
	// maxWatchTime is how long a plain claim watches while the lock goes to others. Until then newcomers may take a
	// free lock before it, because that costs the fewest writes: on a busy lock each of them waits for some
	// milliseconds.
	maxWatchTime = time.Second
	// maxTurnWatchTime is that where clients take turns at looking, once a client that had the lock has it again.
	// Such a client can keep the lock from all waiters. Where each client comes once, the queue would help none of
	// them.
	maxTurnWatchTime = 10 * time.Millisecond
	// minPolledWatchTime is the shortest on tables that are polled, and polledWatchTrips the number of round trips for
	// which a claim watches there, up to maxWatchTime. Claims that poll find a free lock by chance, and hardly ever if
	// one client's claims hand it on to each other. The longer they watch, the more turns in a row such a client has.
	minPolledWatchTime = 100 * time.Millisecond
	polledWatchTrips   = 32
)

// watchTime is how long a plain claim watches while the lock goes to others.
func (e *engine) watchTime() time.Duration {
	if e.watcher != nil {
		return maxWatchTime
	}
	return min(max(polledWatchTrips*e.roundTrip(), minPolledWatchTime), maxWatchTime)
}

// observeHolder notes what a claim that watches sees of a lock that another one holds, and reports whether it must
// join the queue: the lock goes from one holder to the next, and has done so for too long. If the table is polled and
// has a write interval, no claim joins, since each place in the queue costs writes, and its clients do not take a lock
// again at once. Nor does one that has seen a foreign client hold the lock. While the claim waits, its hub calls this,
// with the engine's mutex held.
func (a *acquire) observeHolder(rec *Record) bool {
	w := &a.queue.watching
	if rec.Token != w.token && a.traits.PeerNotices {
		w.noteHolder(rec)
	}
	limit := w.limit
	if w.returned {
		limit = maxTurnWatchTime
	}
	switch {
	case w.token == 0 || rec.Token == w.token:
	case w.overtaken:
		w.over = a.clock.Since(w.since) >= limit
	default:
		w.overtaken, w.since = true, a.clock.Now()
	}
	w.token = rec.Token
	w.foreign = w.foreign || rec.Foreign != 0
	return w.over && !w.foreign && !a.traits.NoQueue && (a.watcher != nil || a.info.WriteInterval == 0)
}

// noteHolder notes which client holds the lock, and whether it held it before. It looks at one holder: where claims
// watch, the lock is a mutex.
func (w *watching) noteHolder(rec *Record) {
	i := slices.IndexFunc(rec.Claims, func(c Claim) bool { return c.State == Granted && c.Session != "" })
	switch {
	case i < 0:
	case slices.Contains(w.holders, rec.Claims[i].Session):
		w.returned = true
	default:
		w.holders = append(w.holders, rec.Claims[i].Session)
	}
}

// backoff counts what this call has run into, to decide how long it pauses and when it gives up.
type backoff struct {
	conflicts     int               // swaps refused in a row
	pause         time.Duration     // how long to pause now, unless the claim goes with another call's swap before
	failures      int               // requests without an answer in a row
	outage        driverutil.Outage // since when the store has not answered
	idleLoads     int               // loads without news before the next wait
	yields        int               // times in a row that it let a renewal go first
	fullQueues    int               // times that the queue or the record was full
	pacedWaits    int               // times in a row that it waited for the store's write interval
	awaitedExpiry bool              // a call that does not wait for the lock has waited once for a claim to expire
}

// A plain claim that finds the queue full pauses for some round trips: on average at least and at most for so long.
const (
	minFullQueuePause = 5 * time.Millisecond
	maxFullQueuePause = time.Second
)

// pauseAtFullQueue pauses before a plain claim looks again at a queue that is full: for longer each time. Many may be
// outside of the queue, so none of them looks at each change.
func (a *acquire) pauseAtFullQueue(ctx context.Context) error {
	d := min(max(16*a.roundTrip(), minFullQueuePause)<<min(a.backoff.fullQueues, 10), maxFullQueuePause)
	a.backoff.fullQueues++
	a.unresolved.unsent = false // the store answers, and there is nothing to write
	a.backoff.noteAnswer()
	if err := a.life.Sleep(ctx, d/2+randomPart(d)); err != nil {
		return err
	}
	return a.loadRow(ctx)
}

// noteAnswer records that the store has answered.
func (b *backoff) noteAnswer() {
	b.outage.RequestAnswered()
	b.failures = 0
}

// step looks at the row and does one thing about it: it writes, loads, or waits. It reports done with the grant; if
// it is not done and has no error, it is called again.
//
// A grant is confirmed by an acknowledged swap, and by nothing else. If the claim is read as granted after a swap
// whose reply was lost, it is written once more, because what can be read may not be durable yet: a database shows a
// commit that its standbys have not received, once the connection that waited for them is broken.
func (a *acquire) step(ctx context.Context) (grant driver.Grant, done bool, err error) {
	if a.backoff.pause > 0 {
		return a.pauseForSwap(ctx)
	}
	if a.joinsCrowd() {
		a.backoff.outage.RequestStarted(a.clock.Now())
		return a.useOutcome(ctx, a.shareStep(ctx, &a.own, a.claim.Name))
	}
	since := a.clock.Now()
	next := a.rec.clone()
	mine, err := a.addClaim(next, a.ownClaim(), a.queue.joins, a.stepInput(a.row, a.rec))
	switch {
	case err != nil && a.source != fromStore && !(errors.Is(err, driver.ErrHeld) && a.canWaitUnread()):
		return grant, false, a.loadRow(ctx) // an old row is no reason to refuse
	case err != nil && next.Runs.lastRun().State != a.rec.Runs.lastRun().State:
		return grant, false, a.writeAbandoned(ctx, next, err)
	case errors.Is(err, driver.ErrHeld) && a.claim.Wait:
		if !a.queue.joins && a.isPlainWaiter() && a.observeHolder(a.rec) {
			a.queue.joins = true
			return grant, false, nil
		}
		return a.waitForChange(ctx, false)
	case errors.Is(err, driver.ErrQueueFull) && a.isPlainWaiter():
		return grant, false, a.pauseAtFullQueue(ctx)
	case errors.Is(err, driver.ErrHeld) && a.mayExpireSoon():
		return grant, false, a.loadAfterExpiry(ctx)
	case err != nil:
		return grant, false, err
	case mine.State != Granted && !a.mustWrite(next):
		if a.source == fromMemory {
			return grant, false, a.loadRow(ctx)
		}
		return a.waitForChange(ctx, true)
	case mine.State != Granted && a.mustYield():
		return grant, false, a.yieldToRenewal(ctx)
	case a.mustKeepInterval():
		return grant, false, a.waitForWriteInterval(ctx)
	}
	return a.writeClaim(ctx, next, mine, since)
}

// canWaitUnread reports whether the claim can wait for a lock that is held as far as it was told: the hub is notified if
// that is not so any more. Where it polls, a read is faster.
func (a *acquire) canWaitUnread() bool {
	return a.claim.Wait && a.source == fromOthers && a.watcher != nil
}

// joinsCrowd reports whether the claim comes to a queue to which other calls of this client write already. Then their
// writer knows best how the record is. Whatever it refuses is looked at here.
func (a *acquire) joinsCrowd() bool {
	return a.source == fromMemory && a.queue.joins && a.claim.Run == nil && a.info.WriteInterval == 0 &&
		a.isShared(a.claim.Name) && a.rec.findClaim(a.claim.ID) == nil && !a.mustYield()
}

// addClaim makes the step of the claim on a record: of a run in a ledger, and otherwise of a lock. A claim that is held
// for others loses its session when it is granted: from then on this client's death says nothing about who works
// under it.
func (a *acquire) addClaim(rec *Record, own Claim, joins bool, in StepInput) (mine *Claim, err error) {
	if a.claim.Run != nil {
		mine, err = rec.Begin(own, *a.claim.Run, a.info, in)
	} else {
		mine, err = rec.Acquire(own, a.claim.Kind, a.claim.Limit, joins, a.info, in)
	}
	if err == nil && mine.State == Granted && a.claim.ForOthers && a.liveness != nil {
		mine.Session = ""
	}
	return mine, err
}

// stepFunc returns the step of the claim as it is now.
func (a *acquire) stepFunc() stepFunc {
	own, joins, unknown := a.ownClaim(), a.queue.joins, a.unresolved.count
	return func(rec *Record, in StepInput) bool {
		mine, err := a.addClaim(rec, own, joins, in)
		if err != nil {
			return false
		}
		mine.Beat += unknown
		return true
	}
}

// writeClaim swaps the row for the record after the step. since is when the step was started: a grant counts from then.
func (a *acquire) writeClaim(
	ctx context.Context, next *Record, mine *Claim, since driver.Instant,
) (grant driver.Grant, done bool, err error) {
	a.backoff.yields = 0
	mine.Beat += a.unresolved.count // so that no two attempts write the same beat
	if a.claim.Run != nil {
		if err := a.makeRoomForRuns(ctx, a.claim.Name, next, a.claim.Run.KeepRuns); err != nil {
			return grant, false, a.retryLater(ctx, err)
		}
	}
	before := a.rec.findClaim(a.claim.ID)
	a.own.urgent = before != nil && before.State == Promoted
	a.backoff.outage.RequestStarted(since)
	return a.useOutcome(ctx, a.writeStep(ctx, &a.own, snapshot{row: a.row, rec: a.rec}, next, since))
}

// useOutcome goes on from the outcome of a swap that had the claim's step.
func (a *acquire) useOutcome(ctx context.Context, o stepOutcome) (grant driver.Grant, done bool, err error) {
	switch err := o.err; {
	case !o.made && o.rec == nil && o.refusedOn.rec != nil:
		a.useTold(o.refusedOn)
		return grant, false, nil
	case !o.made && o.rec == nil:
		return grant, false, a.loadRow(ctx)
	case !o.made:
		a.useRow(o.row, o.rec)
		return grant, false, nil
	case err == nil:
		return a.useWritten(o)
	case errors.Is(err, ErrConflict):
		a.unresolved.unsent = false
		return grant, false, a.handleConflict(ctx, o.row, o.rec)
	case errors.Is(err, driver.ErrQueueFull) && a.source != fromStore: // an old row is no reason to refuse
		return grant, false, a.loadRow(ctx)
	case errors.Is(err, driver.ErrQueueFull) && a.isPlainWaiter() && len(a.rec.Claims) > 0: // they leave it no room
		return grant, false, a.pauseAtFullQueue(ctx)
	case driverutil.IsFinal(err):
		return grant, false, err
	case errors.Is(err, ErrUnsent):
		a.unresolved.unsent = true
		return grant, false, a.retryLater(ctx, err)
	default:
		a.unresolved.noteUnknown(o.replaces)
		return grant, false, a.retryLater(ctx, err)
	}
}

// useWritten goes on from an acknowledged swap: with the grant, or in the queue.
func (a *acquire) useWritten(o stepOutcome) (grant driver.Grant, done bool, err error) {
	a.row, a.rec, a.source = o.row, o.rec, fromStore
	a.unresolved.noteConfirmed()
	a.backoff.conflicts = 0
	a.backoff.noteAnswer()
	mine := o.rec.findClaim(a.claim.ID)
	if mine == nil { // another step of the swap has removed it
		return grant, false, nil
	}
	a.queue.renewedAt, a.queue.beat = o.since, mine.Beat
	if mine.State == Granted {
		return a.newGrant(mine, o.since), true, nil
	}
	a.observeClaims(o.row.Name, o.rec)
	return grant, false, nil
}

// writeAbandoned writes that the last run of the key was abandoned, and returns the reason why no other run begins now.
// Without the write, nobody would know since when: the pause until the next run would never pass.
func (a *acquire) writeAbandoned(ctx context.Context, next *Record, refused error) error {
	row, rec, err := a.swapRecord(ctx, snapshot{row: a.row, rec: a.rec}, next, false)
	switch {
	case err == nil:
		return refused
	case errors.Is(err, ErrConflict):
		return a.handleConflict(ctx, row, rec)
	}
	return a.retryLater(ctx, err)
}

// maxYields is how often in a row a claim lets a renewal go first: often enough for a renewal that needs some tries,
// and no more, since a holder that does not renew may be dead.
const maxYields = 8

// mustYield reports whether this claim should let a renewal go first: it wants to join the queue or to renew its place,
// was not promoted, and a holder is due to renew. If hundreds of clients write at once to a distant store, one of them
// succeeds per round trip, and the holder's renewal would be refused again and again.
func (a *acquire) mustYield() bool {
	mine := a.rec.findClaim(a.claim.ID)
	isPromoted := mine != nil && mine.State == Promoted
	return !isPromoted && a.backoff.yields < maxYields && a.isRenewalDue(a.row, a.rec)
}

// yieldToRenewal lets a renewal that is due be the next to write the row: it waits for one to two round trips, and
// reads the row again.
func (a *acquire) yieldToRenewal(ctx context.Context) error {
	a.backoff.yields++
	if err := a.life.Sleep(ctx, a.roundTrip()+randomPart(a.roundTrip())); err != nil {
		return err
	}
	return a.loadRow(ctx)
}

// maxPacedWaits is how often in a row a claim waits for the store's write interval. It must be bounded: clients that
// make a single try do not wait for the interval, and if they write all the time it never passes.
const maxPacedWaits = 8

// mustKeepInterval reports whether a new claim that can wait should wait because the row was written a moment ago.
func (a *acquire) mustKeepInterval() bool {
	isNew := a.rec.findClaim(a.claim.ID) == nil
	return a.claim.Wait && isNew && a.backoff.pacedWaits < maxPacedWaits && a.writeDelay(a.claim.Name) > 0
}

// waitForWriteInterval waits until the write interval since the lock's last write has passed, and a random time longer,
// so that clients that saw the same write do not all come at once. One wait is enough if no claim has come or gone
// meanwhile: a lock with several holders is written all the time, by their renewals.
func (a *acquire) waitForWriteInterval(ctx context.Context) error {
	if err := a.life.Sleep(ctx, a.writeDelay(a.claim.Name)+randomPart(a.info.WriteInterval/2)); err != nil {
		return err
	}
	before := a.rec
	if err := a.loadRow(ctx); err != nil {
		return err
	}
	a.backoff.pacedWaits++
	sameIDs := slices.EqualFunc(a.rec.Claims, before.Claims, func(c, b Claim) bool { return c.ID == b.ID })
	if a.rec.Token == before.Token && sameIDs {
		a.backoff.pacedWaits = maxPacedWaits
	}
	return nil
}

// maxDoubtWait limits how long a try, which does not want to wait, waits for the store's clock to become clear.
const maxDoubtWait = 2 * time.Second

// mayExpireSoon reports whether a claim that is in the way may have expired already, and will certainly have expired
// in a moment. That happens where the store's clock is known only roughly.
func (a *acquire) mayExpireSoon() bool {
	early, late, _ := a.storeBounds()
	left, ok := a.nextExpiry(a.claim.Name, a.rec)
	doubt := min(time.Duration(late-early)*time.Microsecond, maxDoubtWait)
	return ok && !a.backoff.awaitedExpiry && left > 0 && left <= doubt
}

// loadAfterExpiry waits until the next claim in the row may have expired, and reads the row again.
func (a *acquire) loadAfterExpiry(ctx context.Context) error {
	a.backoff.awaitedExpiry = true
	left, _ := a.nextExpiry(a.claim.Name, a.rec)
	if err := a.life.Sleep(ctx, max(left, 0)+time.Millisecond); err != nil {
		return err
	}
	return a.loadRow(ctx)
}

// maxDefaultWindow is the longest confirm window that a client does not ask for. The client that promotes a claim gives
// it two seconds and ten round trips, as measured by that client. A client that needs more than maxDefaultWindow,
// because it is far from the store, writes its own window into its claim. Otherwise it would miss each promotion.
const maxDefaultWindow = 4 * time.Second

// ownClaim is the claim as the step puts it into the record. Its beat continues from the last one that was written: if
// the claim has lost its place and joins again, others must not take it for the earlier claim, unchanged since then.
func (a *acquire) ownClaim() Claim {
	c := a.claim
	session := ""
	switch {
	case c.Detached:
	case a.liveness != nil:
		session = a.liveness.Session()
	case a.watcher != nil && a.queue.joins:
		session = a.watcher.Session()
	}
	var window time.Duration
	if w := a.confirmWindow(); w > maxDefaultWindow {
		window = w
	}
	return Claim{
		ID: c.ID, Session: session, Owner: c.Owner, Meta: c.Meta, Weight: c.Weight, TTL: c.TTL,
		Beat: a.queue.beat, ConfirmWindow: window, Detached: c.Detached, own: true,
	}
}

// mustWrite reports whether a step that grants nothing is worth a write: the claim joins the queue, answers a
// promotion, or is due for a renewal; or other claims have to be removed or promoted.
func (a *acquire) mustWrite(next *Record) bool {
	mine := a.rec.findClaim(a.claim.ID)
	if mine == nil || mine.State == Promoted || a.clock.Since(a.queue.renewedAt) >= a.claim.TTL/3 {
		return true
	}
	if len(next.Claims) != len(a.rec.Claims) {
		return true
	}
	for i := range next.Claims {
		if next.Claims[i].State != a.rec.Claims[i].State {
			return true
		}
	}
	return false
}

// newGrant counts the lease from the start of the swap, not from its reply: others count from the write, which may have
// happened at any time in between.
func (a *acquire) newGrant(mine *Claim, since driver.Instant) driver.Grant {
	g := driver.Grant{Claim: a.claim, Token: mine.Token, Since: since, GrantedTTL: a.claim.TTL, Ref: a.claim.ID}
	g.Permits = driverutil.ParsePermits(mine.Permits)
	if a.claim.Run != nil {
		g.Attempt = a.rec.Runs.lastRun().Attempt
	}
	return g
}

// loadRow loads the row and looks at it next.
func (a *acquire) loadRow(ctx context.Context) error {
	a.backoff.outage.RequestStarted(a.clock.Now())
	row, rec, err := a.loadForStep(ctx, a.claim.Name)
	if err != nil {
		if errors.Is(err, driver.ErrCorrupt) {
			return err
		}
		return a.retryLater(ctx, err)
	}
	a.useRow(row, rec)
	if !a.unresolved.unknown && !a.unresolved.unsent { // a store may answer reads while it takes no writes
		a.backoff.noteAnswer()
	}
	return nil
}

// useRow makes a row that was just loaded the one that the next step looks at.
func (a *acquire) useRow(row Row, rec *Record) {
	a.row, a.rec, a.source = row, rec, fromStore
	a.unresolved.resolve(row, rec.findClaim(a.claim.ID) != nil)
	a.observeClaims(row.Name, rec)
}

// useTold makes a row the one that the next step looks at although this call has not read it. It may be older than a swap
// of this call without a reply, and proves nothing about that.
func (a *acquire) useTold(s snapshot) { a.row, a.rec, a.source = s.row, s.rec, fromOthers }

// handleConflict continues from the row that another client's write has left. rec is nil if the refusal did not bring
// it.
func (a *acquire) handleConflict(ctx context.Context, row Row, rec *Record) error {
	a.backoff.noteAnswer()
	a.backoff.pacedWaits = 0
	tries := a.backoff.conflicts
	if mine := a.rec.findClaim(a.claim.ID); mine != nil && mine.State == Promoted {
		tries /= 4 // it is this claim's turn: the others pause for longer
	}
	pause := a.conflictPause(tries, len(a.rec.Claims))
	if err := ctx.Err(); err != nil {
		return err
	}
	a.backoff.conflicts++
	switch {
	case pause > 0 && a.queue.joins && !a.keepsRuns:
		a.backoff.pause, a.source = pause, fromOthers // the row is old
		return nil
	case pause > 0:
		if err := a.life.Sleep(ctx, pause); err != nil {
			return err
		}
		return a.loadRow(ctx) // the row from the refusal is old
	case rec == nil:
		return a.loadRow(ctx)
	}
	a.useRow(row, rec)
	return nil
}

// pauseForSwap pauses after a refusal. If another call of this client makes a swap meanwhile, such as the release of a
// holder, the claim goes with it.
func (a *acquire) pauseForSwap(ctx context.Context) (grant driver.Grant, done bool, err error) {
	d, since := a.backoff.pause, a.clock.Now()
	a.backoff.pause = 0
	o, ok := a.pauseStep(ctx, d, &a.own, a.claim.Name)
	if !ok {
		return grant, false, a.loadRow(ctx)
	}
	if o.made && !errors.Is(o.err, ErrUnsent) {
		a.backoff.outage.RequestStarted(since)
	}
	return a.useOutcome(ctx, o)
}

// retryLater pauses after a request without an answer, and loads the row: nobody knows what it is now. It gives up with
// the error when the store was unreachable for too long, or the error is final.
func (a *acquire) retryLater(ctx context.Context, err error) error {
	a.backoff.outage.NoteReason(ctx, err)
	if ctx.Err() != nil {
		return err
	}
	gaveUp := a.backoff.outage.RequestFailed(a.clock, driver.UnreachableTimeout(a.claim.TTL))
	if gaveUp || driverutil.IsFinal(err) {
		return err
	}
	a.backoff.failures++
	if err := a.pauseAfterFailure(ctx, a.backoff.failures+2); err != nil {
		return err
	}
	return a.loadRow(ctx)
}

// finalError turns an error into the one that Acquire returns. If a swap may still take effect, the error is
// ErrUncertain, and the engine remembers the swap, so that a Release of the claim can make it impossible. So it is if
// the store refuses to go on with a claim that waits in the queue.
func (a *acquire) finalError(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case a.life.Err() != nil:
		err = driver.ErrClosed
	case ctx.Err() != nil && !driverutil.IsFinal(err):
		err = a.waitError(ctx.Err())
	default: // an error of a context is the store's, not the caller's
		err = driverutil.HideContextError(err)
	}
	err = a.backoff.outage.Explain(a.clock, err)
	if o := a.leaveStep(context.Canceled, &a.own); o.made && !errors.Is(o.err, ErrUnsent) {
		a.unresolved.noteUnknown(o.replaces) // it may have been granted meanwhile
	}
	if a.unresolved.unknown {
		a.mu.Lock()
		a.pending.addSwap(a.claim.ID, a.unresolved.replaces, a.claim.TTL, a.clock.Now())
		a.mu.Unlock()
		return driverutil.Unresolved(err)
	}
	switch {
	case a.rec.findClaim(a.claim.ID) == nil:
	case errors.Is(err, driver.ErrQueueFull), errors.Is(err, driver.ErrSuperseded):
		return a.leaveQueue(ctx, err)
	case driverutil.IsFinal(err): // it waits in the queue, and only for an uncertain outcome will the client release it
		return driverutil.Unresolved(err)
	}
	return err
}

// leaveQueue removes a claim that has waited in the queue and is refused now: its turn has come, but too many hold the
// lock, or the record has no room; or a newer claim waits. The caller takes a refused claim for one that is not in
// the store.
func (a *acquire) leaveQueue(ctx context.Context, refusal error) error {
	if err := a.Release(ctx, a.claim, ""); err != nil && !errors.Is(err, driver.ErrLost) {
		return driverutil.Unresolved(refusal)
	}
	return refusal
}

// waitError adds to an error the holders that the call has waited for, if it has seen any.
func (a *acquire) waitError(err error) error {
	if a.rec == nil || a.rec.countHolders() == 0 || a.source == fromMemory {
		return err
	}
	return fmt.Errorf("%w; %w", err, a.rec.heldError(a.stepInput(a.row, a.rec)))
}

// waitForChange blocks until there may be something to do. The next step then looks at the row of that moment. The
// lock's hub notifies it. A claim that is in the queue also wakes up in time to renew its place, and stands by to be
// granted by the swap of another call.
func (a *acquire) waitForChange(ctx context.Context, inQueue bool) (grant driver.Grant, done bool, err error) {
	limit := driver.UnreachableTimeout(a.claim.TTL) / 2
	if inQueue {
		limit = max(a.claim.TTL/3-a.clock.Since(a.queue.renewedAt), 0)
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	a.backoff.noteAnswer() // the store has answered, and nothing needs to be asked now
	a.backoff.pacedWaits = 0
	a.queue.watching.limit = a.watchTime()
	sub := &subscription{
		id: a.claim.ID, version: a.row.Version, observe: a.observe, inQueue: inQueue,
		unreachableTimeout: driver.UnreachableTimeout(a.claim.TTL), updates: make(chan update, 1),
	}
	unsubscribe := a.subscribe(sub, a.row, a.rec, a.backoff.idleLoads)
	defer unsubscribe()
	if inQueue {
		a.standBy(&a.own, a.stepFunc(), a.claim.Name)
	}
	select {
	case <-a.own.done:
		unsubscribe()
		a.backoff.outage = sub.outage // the swap may be one more request without an answer
		return a.useOutcome(ctx, a.takeOutcome(&a.own))
	case u := <-sub.updates:
		if u.err != nil {
			return grant, false, u.err
		}
		a.backoff.idleLoads = 0
		if u.noticed {
			a.useTold(u.snapshot)
		} else {
			a.useRow(u.row, u.rec)
		}
		return grant, false, nil
	case <-timer.C:
		a.backoff.idleLoads = maxIdleLoads
		unsubscribe()
		a.backoff.outage = sub.outage
		return grant, false, a.loadRow(ctx)
	case <-ctx.Done():
		unsubscribe()
		a.backoff.outage = sub.outage
		return a.useOutcome(ctx, a.leaveStep(ctx.Err(), &a.own))
	}
}

// observe takes in a change of the lock, and reports whether it concerns this claim: it can be granted, was promoted or
// removed, must give up for a newer one, or is the first waiter after the promoted ones. The other waiters need not
// wake up.
func (a *acquire) observe(rec *Record) bool {
	mine := rec.findClaim(a.claim.ID)
	switch {
	case !a.queue.joins:
		fits := len(rec.Claims) == 0 || rec.totalWeight()+a.claim.Weight <= rec.Limit
		return fits || rec.Kind != a.claim.Kind || a.isPlainWaiter() && a.observeHolder(rec)
	case mine == nil || mine.State != Waiting || rec.isSuperseded(mine):
		return true
	}
	for i := range rec.Claims {
		if rec.Claims[i].State == Waiting {
			return rec.Claims[i].ID == a.claim.ID
		}
	}
	return false
}
