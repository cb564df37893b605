package record

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Record is the complete state of one lock, as a table stores it. The steps below change a record in place and are
// otherwise pure: they read no clock and no store. A caller works on a clone, and discards it if the swap is refused.
//
// A record keeps these rules, which [Record.Check] verifies before each write and after each read: the weight of the
// holders, and of all claims ahead of each of them, is within the limit; every holder has a token of its own; no
// token is larger than Token, which never falls while the record exists; and no two holders have the same permit.
type Record struct {
	Kind   driver.Kind  // empty while idle
	Limit  int64        // 0 while idle
	Token  int64        // the largest token ever granted on this lock
	Idle   int64        // store's clock when the last claim left, in microseconds; 0 while there are claims
	Claims []Claim      // holders and waiters together, in order of arrival
	Ended  []EndedClaim // claims that others have ended, so that their owners can tell that from their own release
	// NotesDroppedUntil is not 0 if notes were dropped from Ended because there were too many. Up to this time of the
	// store's clock, in microseconds, a missing note proves nothing.
	NotesDroppedUntil int64

	// Runs is the history of a key in a ledger; nil for a lock.
	Runs *RunLog

	// Foreign is never stored. If it is not 0, a foreign client holds the lock up to this time of the store's clock, in
	// microseconds, and the record has no claims.
	Foreign int64

	// brokenSession is the session of the waiter that the last step has broken; not stored. Far from the head of the
	// queue, its client looks at no changes.
	brokenSession string
}

// NoEnd is the value of [Record.Foreign] for a foreign client's hold that has no end.
const NoEnd = math.MaxInt64

// Claim is one claim in a Record. Its owner must renew it: a claim that is not renewed for SilenceLimit expires, and
// the next client that comes to the lock removes it. Every write by the owner raises Beat, so that others can see
// that the claim was renewed without comparing clocks.
type Claim struct {
	ID           string
	Session      string // the client that made it, if the table can notify it, or can tell if it is alive and that matters
	Owner        string // only shown
	Meta         string // only shown
	Weight       int64
	TTL          time.Duration
	State        State
	Token        int64         // 0 until granted
	Beat         int64         // grows with every renewal and every promotion
	SilenceLimit time.Duration // how long after this beat the claim expires: the TTL, or the confirm window if promoted
	// ExpiresAt is the store's clock, in microseconds, past which the claim has certainly not been renewed for
	// SilenceLimit; 0 if its writer did not know the store's clock. Then the claim can expire only by being watched.
	ExpiresAt int64
	Since     int64 // store's clock when it was granted, or arrived; 0: not known; only shown
	// ConfirmWindow is how long the claim needs to confirm a promotion, if that is longer than others would give it.
	ConfirmWindow    time.Duration
	Detached         bool   // no process renews it: it is held until SilenceLimit has passed
	ReleaseRequested bool   // its holder is asked to release it
	Broken           bool   // an operator broke it gracefully: its next renewal fails
	BreakReason      string // what the operator said; only shown, and may be empty
	Marked           bool   // it has expired when the row has no mark: see [Traits]
	// Permits are the numbers of its permits on a semaphore, such as "0,3"; empty: it has none. See choosePermits.
	Permits string

	renewed bool // by the step that is being made; not stored
	own     bool // this client has made it; not stored, so a claim that was read does not say so: a hint
}

// EndedClaim is a note that somebody other than its owner has ended a claim: an operator, or the client that found it
// expired. It is written in the same step as the removal, and kept for as long as the claim's owner may ask.
type EndedClaim struct {
	ID    string
	Cause driver.LossCause
	Until int64 // store's clock, in microseconds, up to which the note is kept
	// Reason is what the operator said who broke the claim; only shown, and may be empty.
	Reason string
}

// State says how far a claim has come.
type State string

// A claim waits, is promoted, and is granted.
//
// A promoted claim still waits. Its turn has come, or a promoted claim ahead of it did not confirm in time; it is now
// asked to confirm within a window. A promotion gives the claim nothing: only a grant does, and a claim writes its
// grant itself. So it is safe to promote several claims at once, and to remove one that does not answer.
const (
	Waiting  State = "waiting"
	Promoted State = "promoted"
	Granted  State = "granted"
)

// StepInput is everything that a step may know about time and about other clients. The engine fills it in before each
// step. All times are readings of the store's clock in microseconds since 1970.
//
// The store's clock is known only approximately: it lies between Earliest and Latest. Every decision uses the bound
// that is safe for it. A claim counts as expired only if even Earliest is past its end, and its end is counted from
// Latest.
type StepInput struct {
	// ClockTrusted reports whether Earliest and Latest may expire claims. If it is false they mean nothing, and claims
	// expire only by what LivenessOf says.
	ClockTrusted bool
	// Now is the best estimate of the store's clock. It is used only for tokens and for times that are shown, so an
	// error in it cannot expire a claim. It is valid even if ClockTrusted is false.
	Now int64
	// StoreTime bounds the store's clock for the times that a ledger stores and compares later. It may be known
	// although ClockTrusted is false: it is good enough for a pause, and not for the end of a claim.
	StoreTime TimeBounds
	// Untimed: the store's clock was not read since the record was written. It may have been set back before that, so
	// no time in the record counts as passed.
	Untimed bool
	// Earliest is a lower bound: the store's clock is certainly past it.
	Earliest int64
	// Latest is an upper bound: the store's clock is certainly not past it.
	Latest int64
	// ConfirmWindow is how long a claim that this step promotes has to confirm.
	ConfirmWindow time.Duration
	// BeatSkip is added to each new beat. It is random, so that a beat that was lost by the store is not written again.
	BeatSkip int64
	// KeepsMarks reports whether the table has Traits.Marks. MarkIsGone reports that the row was read without a mark.
	KeepsMarks, MarkIsGone bool
	// Sharing has the ids of the claims whose owners' steps are made together with this one. Each of those steps
	// decides what becomes of its claim, which does not expire before.
	Sharing []string
	// LivenessOf returns what this client has found out about a claim by other means than the store's clock: from the
	// table's [LivenessChecker], or by watching the claim. It must not be nil.
	LivenessOf func(*Claim) Liveness
}

// Liveness is what is known of a claim's client.
type Liveness int

const (
	// Alive means that the client is alive, or that nothing else is known of it.
	Alive Liveness = iota
	// StoppedRenewing means that the claim was not renewed for longer than its SilenceLimit.
	StoppedRenewing
	// Dead means that the table knows that the client does not exist any more.
	Dead
)

// findClaim returns the claim with that id, or nil.
func (r *Record) findClaim(id string) *Claim {
	for i := range r.Claims {
		if r.Claims[i].ID == id {
			return &r.Claims[i]
		}
	}
	return nil
}

// fitsLimit is the one rule of the toolkit: a claim may be granted if its weight and the weight of all claims ahead
// of it are together within the limit. Claims ahead count even while they wait, so nobody overtakes a waiter.
func (r *Record) fitsLimit(id string) bool {
	var sum int64
	for i := range r.Claims {
		sum += r.Claims[i].Weight
		if r.Claims[i].ID == id {
			return sum <= r.Limit
		}
	}
	return false
}

// totalWeight is the weight of all claims, holders and waiters.
func (r *Record) totalWeight() (sum int64) {
	for i := range r.Claims {
		sum += r.Claims[i].Weight
	}
	return sum
}

// countHolders counts the claims that are granted.
func (r *Record) countHolders() (n int) {
	for i := range r.Claims {
		if r.Claims[i].State == Granted {
			n++
		}
	}
	return n
}

func (r *Record) countWaiters() int { return len(r.Claims) - r.countHolders() }

// judgeClaim decides whether a claim has expired: by what this client has found out, and by the store's clock.
func (in StepInput) judgeClaim(c *Claim) Liveness {
	v := in.LivenessOf(c)
	if v == Alive && in.isExpired(c) {
		return StoppedRenewing
	}
	return v
}

// isExpired reports whether a claim has certainly expired by the store's clock, or by its mark.
func (in StepInput) isExpired(c *Claim) bool {
	return c.Marked && in.MarkIsGone || c.ExpiresAt > 0 && in.hasPassed(c.ExpiresAt)
}

// isExpiredHolder is isExpired for holders. A waiter whose renewal is late keeps its place if nobody has removed it
// yet.
func (in StepInput) isExpiredHolder(c *Claim) bool { return c.State == Granted && in.isExpired(c) }

// foreignEnd returns the end of a foreign client's hold, or 0 if there is none or it has expired.
func (in StepInput) foreignEnd(r *Record) int64 {
	if in.hasPassed(r.Foreign) {
		return 0
	}
	return r.Foreign
}

// foreignRef names the foreign holder to an operator.
func (r *Record) foreignRef() string { return fmt.Sprintf("foreign-%d", r.Foreign) }

// expiryAfter returns the ExpiresAt of a claim that may go without renewal for d from now on. It is counted from the
// latest that the store's clock can be, so that nobody expires the claim early.
func (in StepInput) expiryAfter(d time.Duration) int64 {
	if !in.ClockTrusted {
		return 0
	}
	return in.Latest + d.Microseconds()
}

// hasPassed reports whether a time in the record, which is one of the store's clock, has certainly passed.
func (in StepInput) hasPassed(at int64) bool {
	return in.ClockTrusted && !in.Untimed && in.Earliest > at
}

// expireAndPromote is part of nearly every step. It removes the claims that have expired, except the one with the id
// keep, and promotes the waiters whose turn has come. keep is the claim whose owner makes the step: the owner is
// evidently alive, and its own step decides what becomes of its claim.
//
// A promoted claim that did not confirm in time shows that its client died while it waited, and other waiters may have
// died with it: see callRoll.
func (r *Record) expireAndPromote(in StepInput, keep string) {
	r.Foreign = in.foreignEnd(r)
	r.dropOldNotes(in)
	if unconfirmed := r.removeExpired(in, keep); unconfirmed > 0 {
		r.callRoll(in, unconfirmed)
	}
	var sum int64
	for i := range r.Claims {
		c := &r.Claims[i]
		sum += c.Weight
		if c.State == Waiting && sum <= r.Limit {
			c.promote(in, in.ConfirmWindow)
		}
	}
	if len(r.Claims) == 0 && r.Idle == 0 {
		r.Kind, r.Limit, r.Idle = "", 0, max(in.Now, 1)
	}
}

// callRoll promotes the next waiters after some promoted claims did not confirm: four for each of these. Those of them
// that are dead expire together, so many dead waiters delay the queue little more than a few.
//
// The window grows with the number of those that are asked, because all of them write the same record. It must not grow
// when only one claim did not confirm: then each dead waiter delays the queue by one window at most, however many wait
// behind it.
func (r *Record) callRoll(in StepInput, unconfirmed int) {
	const askedForEach = 4
	asked := min(askedForEach*unconfirmed, r.countWaiters())
	window := in.ConfirmWindow
	if unconfirmed > 1 {
		window += in.ConfirmWindow * time.Duration(asked) / 8
	}
	for i := range r.Claims {
		if c := &r.Claims[i]; c.State == Waiting && asked > 0 {
			c.promote(in, window)
			asked--
		}
	}
}

// removeExpired removes the claims that have expired, except keep, with a note for each holder. It returns how many of
// them were promoted and did not confirm.
func (r *Record) removeExpired(in StepInput, keep string) (unconfirmed int) {
	kept := r.Claims[:0]
	for i := range r.Claims {
		c := &r.Claims[i]
		v := Alive
		if c.ID != keep {
			v = in.judgeClaim(c)
		}
		if v != Alive && slices.Contains(in.Sharing, c.ID) {
			v = Alive
		}
		switch {
		case v == Alive:
			kept = append(kept, *c)
		case c.State == Granted:
			r.addNote(c, c.lossCause(v), in)
			r.endRun(c, driver.RunAbandoned, c.abandonReason(v), in)
		}
		if c.State == Promoted && v == StoppedRenewing {
			unconfirmed++
		}
	}
	clear(r.Claims[len(kept):])
	if r.Claims = kept; len(kept) == 0 {
		r.Claims = nil
	}
	return unconfirmed
}

// lossCause is the cause that is noted for a holder that is removed because of its liveness.
func (c *Claim) lossCause(v Liveness) driver.LossCause {
	switch {
	case c.Broken:
		return driver.LossBroken
	case v == Dead:
		return driver.LossGone
	default:
		return driver.LossExpired
	}
}

// abandonReason says for people why the run of such a holder is abandoned.
func (c *Claim) abandonReason(v Liveness) string {
	if v == Dead && !c.Broken {
		return "its worker has ended without a report"
	}
	return c.lossCause(v).Description()
}

// advanceBeat gives the claim a beat that no observer has seen yet. The next number would not do: after a failover a
// store may have forgotten the last beats, which others have read already. If the same numbers were written once more,
// an observer would believe that the claim has been unchanged since it first read them.
func (c *Claim) advanceBeat(in StepInput) { c.Beat += 1 + in.BeatSkip }

// promote asks a waiting claim to confirm within d, or within its own window if that is longer, and at most its TTL.
func (c *Claim) promote(in StepInput, d time.Duration) {
	c.State = Promoted
	c.advanceBeat(in)
	c.SilenceLimit = min(max(d, c.ConfirmWindow), c.TTL)
	c.ExpiresAt = in.expiryAfter(c.SilenceLimit)
}

// renewExpiry records a renewal by the claim's owner: the claim may now go without another one for its TTL.
func (c *Claim) renewExpiry(in StepInput) {
	c.advanceBeat(in)
	c.SilenceLimit = c.TTL
	c.ExpiresAt = in.expiryAfter(c.TTL)
	c.Marked, c.renewed = in.KeepsMarks, true
}

// grantClaim makes a claim that fits a holder, under the next token. The token is at least the store's clock, so that
// tokens go on growing even after the idle record of the lock was deleted and created again.
func (r *Record) grantClaim(c *Claim, in StepInput) {
	c.Permits = r.choosePermits(c)
	r.Token = max(r.Token+1, in.Now)
	c.State, c.Token, c.Since = Granted, r.Token, max(in.Now, 0)
	c.renewExpiry(in)
}

// replaceToken gives the last grant the token that the store itself has made for it.
func (r *Record) replaceToken(token int64) {
	for i := range r.Claims {
		if r.Claims[i].Token == r.Token {
			r.Claims[i].Token = token
		}
	}
	r.Token = token
}

// Acquire is the step of a claim that wants to be granted. The claim may be new, or it may be in the record already,
// as a waiter or as a holder whose grant did not reach its owner. It returns the claim as it is after the step, or an
// error and no claim. For a claim that goes on waiting, the step counts as a renewal.
//
// If queue is false, the claim is granted at once or refused with a *driver.HeldError.
func (r *Record) Acquire(
	c Claim, kind driver.Kind, limit int64, queue bool, info driver.Info, in StepInput,
) (*Claim, error) {
	r.expireAndPromote(in, c.ID)
	if r.notedCause(c.ID) == driver.LossBroken {
		return nil, driverutil.BrokenError(r.notedReason(c.ID))
	}
	if mine := r.findClaim(c.ID); mine != nil {
		mine.ConfirmWindow, mine.own = c.ConfirmWindow, c.own
		return r.acquireAgain(mine, info, in)
	}
	if len(r.Claims) > 0 && (r.Kind != kind || r.Limit != limit) {
		return nil, driverutil.Mismatch(r.Kind, r.Limit, kind, limit)
	}
	fits := r.totalWeight()+c.Weight <= limit
	switch {
	case r.Foreign != 0, !fits && !queue:
		return nil, r.heldError(in)
	case !fits && r.countWaiters() >= info.MaxWaiters:
		return nil, fmt.Errorf("%w: %d waiters", driver.ErrQueueFull, info.MaxWaiters)
	case fits && r.countHolders() >= info.MaxHolders:
		return nil, fmt.Errorf("%w: %d holders", driver.ErrQueueFull, info.MaxHolders)
	}
	r.Kind, r.Limit, r.Idle = kind, limit, 0
	r.dropNote(c.ID) // it is about this claim's earlier life, and would be taken for the end of the new one
	c.State, c.Since = Waiting, max(in.Now, 0)
	r.Claims = append(r.Claims, c)
	mine := &r.Claims[len(r.Claims)-1]
	mine.renewExpiry(in)
	if fits {
		r.grantClaim(mine, in)
	}
	return mine, nil
}

// acquireAgain is Acquire for a claim that is in the record already.
func (r *Record) acquireAgain(mine *Claim, info driver.Info, in StepInput) (*Claim, error) {
	switch {
	case mine.State == Granted && mine.Broken:
		return nil, driverutil.BrokenError(mine.BreakReason)
	case mine.State == Granted:
		mine.renewExpiry(in)
	case r.isSuperseded(mine): // even if its turn has come
		return nil, driver.ErrSuperseded
	case r.fitsLimit(mine.ID):
		if r.countHolders() >= info.MaxHolders {
			return nil, fmt.Errorf("%w: %d holders", driver.ErrQueueFull, info.MaxHolders)
		}
		r.grantClaim(mine, in)
	default:
		mine.State = Waiting
		mine.renewExpiry(in)
	}
	return mine, nil
}

// isSuperseded reports whether a claim of the record must give up its wait: it is newest-only, and so is one that has
// begun to wait behind it. The order of the claims is total, so of two that wait one stays, and the last one always
// does.
func (r *Record) isSuperseded(c *Claim) bool {
	if c.State == Granted || !driver.IsNewestOnly(c.ID) {
		return false
	}
	for i := len(r.Claims) - 1; i >= 0 && r.Claims[i].ID != c.ID; i-- {
		if r.Claims[i].State != Granted && driver.IsNewestOnly(r.Claims[i].ID) {
			return true
		}
	}
	return false
}

// heldError says which claims are in the way.
func (r *Record) heldError(in StepInput) error {
	l := r.describeLock("", in)
	return &driver.HeldError{Holders: l.Holders, Waiting: len(l.Waiters)}
}

// Renew is the step of a holder that keeps its claim. The claim is lost if it is not in the record, if it was granted
// again under another token, or if it has expired, even if nobody has removed it yet. A lost claim is never added
// again: another client may have held the lock in between.
func (r *Record) Renew(id string, token int64, in StepInput) (*Claim, error) {
	c := r.findClaim(id)
	if c == nil || c.State != Granted || c.Token != token {
		return nil, r.lossError(id, token)
	}
	if c.Broken {
		return nil, driverutil.MarkedError(c.BreakReason)
	}
	if in.isExpiredHolder(c) {
		return nil, &driver.LossError{Cause: driver.LossExpired}
	}
	c.renewExpiry(in)
	c.own = true
	return c, nil
}

// lossCause returns why a grant does not exist any more.
func (r *Record) lossCause(id string, token int64) driver.LossCause {
	loss := r.notedCause(id)
	switch {
	case loss == driver.LossBroken:
		return loss
	case r.Foreign != 0, r.countHolders() > 0 && r.Token > token:
		return driver.LossTaken
	default:
		return cmp.Or(loss, driver.LossGone)
	}
}

// lossError says why a grant does not exist any more, with what the operator said who broke it.
func (r *Record) lossError(id string, token int64) error {
	cause := r.lossCause(id, token)
	if cause == driver.LossBroken {
		return driverutil.BrokenError(r.notedReason(id))
	}
	return &driver.LossError{Cause: cause}
}

// Release is the step of a claim whose owner gives it up. It reports whether the claim was in the record, and whether
// it was a holder that had expired already.
func (r *Record) Release(id string, in StepInput) (existed, expired bool) {
	for i := range r.Claims {
		if c := &r.Claims[i]; c.ID == id {
			expired = in.isExpiredHolder(c)
			r.endRun(c, driver.RunFailed, "it was released without an outcome", in)
			r.Claims = append(r.Claims[:i:i], r.Claims[i+1:]...)
			r.expireAndPromote(in, "")
			return true, expired
		}
	}
	return false, false
}

// Detach is the step of a holder that leaves its claim in place for d, without a process that renews it.
func (r *Record) Detach(id string, token int64, d time.Duration, in StepInput) error {
	c, err := r.Renew(id, token, in)
	if err != nil {
		return err
	}
	c.Detached, c.Session = true, ""
	c.TTL, c.SilenceLimit, c.ExpiresAt = d, d, in.expiryAfter(d)
	return nil
}

// SetWeight is the step of a holder that wants more of the lock, or less. It is refused if a holder would then exceed
// the limit, counted in order of arrival. Waiters are overtaken: the holder was granted before they arrived.
func (r *Record) SetWeight(id string, token, weight int64, in StepInput) error {
	if r.Kind == driver.KindSemaphore { // its holder would not learn which permits it then has
		return driverutil.RefuseSemaphoreWeight()
	}
	r.expireAndPromote(in, id)
	c, err := r.Renew(id, token, in)
	if err != nil {
		return err
	}
	if weight < 1 || weight > r.Limit {
		return fmt.Errorf("%w: a weight must be 1 to the limit of %d, not %d", driver.ErrInvalid, r.Limit, weight)
	}
	before := c.Weight
	c.Weight = weight
	var sum int64
	for i := range r.Claims {
		sum += r.Claims[i].Weight
		if r.Claims[i].State == Granted && sum > r.Limit && weight > before {
			c.Weight = before
			return r.heldError(in)
		}
	}
	r.expireAndPromote(in, id)
	return nil
}

// Break is the step of an operator who ends a claim, or asks its holder to release it.
//
// A graceful break only marks a holder. Its next renewal fails, so its owner stops, and then releases the claim or
// lets it expire. A forced break removes the claim at once and raises the token, so that a resource that checks
// tokens and has seen the next holder's refuses the old one. A waiter holds nothing, so it is removed in both modes.
func (r *Record) Break(id string, b driver.Break, in StepInput) error {
	c := r.findClaim(id)
	if r.Foreign != 0 && id == r.foreignRef() {
		if b.Mode != driver.BreakForce {
			return fmt.Errorf("%w: a foreign holder cannot be notified", driver.ErrUnsupported)
		}
		r.Foreign, r.Token, r.Idle = 0, max(r.Token+1, in.Now), max(in.Now, 1)
		r.addNote(&Claim{ID: id, TTL: maxSettleTime}, driver.LossBroken, in)
		return nil
	}
	if c == nil {
		return fmt.Errorf("no such claim exists: %w", driver.ErrLost)
	}
	switch {
	case b.Mode == driver.BreakRequestRelease:
		c.ReleaseRequested = true
	case b.Mode == driver.BreakGraceful && c.State == Granted:
		c.Broken, c.BreakReason = true, b.Reason
	default:
		if c.State == Granted {
			r.Token = max(r.Token+1, in.Now)
		} else {
			r.brokenSession = c.Session
		}
		c.BreakReason = b.Reason
		r.addNote(c, driver.LossBroken, in)
		r.endRun(c, driver.RunAbandoned, driver.LossBroken.Description(), in)
		r.Release(id, in)
	}
	return nil
}

// RaiseToken is the step of an operator who wants all tokens to come to be at least as large as atLeast. A record whose
// token is ahead of the store's clock is not forgotten before the clock has passed it: see isForgettable.
func (r *Record) RaiseToken(atLeast int64, in StepInput) error {
	if r.Token >= atLeast-1 {
		return errDone
	}
	r.Token = atLeast - 1
	if len(r.Claims) == 0 && r.Foreign == 0 {
		r.Idle = max(r.Idle, in.Now, 1)
	}
	return nil
}

// Check reports what is wrong with a record. It is called before each write and after each read.
func (r *Record) Check() error {
	if err := r.checkRuns(); err != nil {
		return err
	}
	if len(r.Claims) == 0 {
		if r.Kind != "" || r.Limit != 0 || r.Token < 0 {
			return fmt.Errorf("an idle record has kind %q, limit %d, token %d", r.Kind, r.Limit, r.Token)
		}
		return nil
	}
	if r.Kind == "" || r.Limit < 1 {
		return fmt.Errorf("kind %q, limit %d", r.Kind, r.Limit)
	}
	var sum int64
	ids, tokens := map[string]bool{}, map[int64]bool{}
	for i := range r.Claims {
		c := &r.Claims[i]
		sum += c.Weight
		switch {
		case c.ID == "" || ids[c.ID]:
			return fmt.Errorf("claim id %q is empty or occurs twice", c.ID)
		case c.Weight < 1 || c.Weight > r.Limit:
			return fmt.Errorf("claim %s weighs %d of %d", c.ID, c.Weight, r.Limit)
		case c.TTL <= 0 || c.SilenceLimit <= 0:
			return fmt.Errorf("claim %s has TTL %v, silence limit %v", c.ID, c.TTL, c.SilenceLimit)
		case c.State != Granted && c.Token != 0,
			c.State == Granted && (c.Token < 1 || c.Token > r.Token || tokens[c.Token]):
			return fmt.Errorf("claim %s is %s with token %d, the largest being %d", c.ID, c.State, c.Token, r.Token)
		case c.State == Granted && sum > r.Limit:
			return fmt.Errorf("claim %s is granted beyond the limit: %d of %d", c.ID, sum, r.Limit)
		case c.State != Waiting && c.State != Promoted && c.State != Granted:
			return fmt.Errorf("claim %s has the unknown state %q", c.ID, c.State)
		}
		ids[c.ID], tokens[c.Token] = true, true
	}
	return r.checkPermits()
}

// markOwn marks the claims that an earlier version of the record has marked as this client's own. Claims keep their
// order.
func (r *Record) markOwn(before *Record) {
	rest := before.Claims
	for i := range r.Claims {
		at := slices.IndexFunc(rest, func(c Claim) bool { return c.ID == r.Claims[i].ID })
		if at >= 0 {
			r.Claims[i].own, rest = rest[at].own, rest[at+1:]
		}
	}
}

// clone returns a copy whose claims can be changed, with room for one more. The notes are shared: see
// [Record.dropNotesIf].
func (r *Record) clone() *Record { return r.cloneWithRoom(1) }

// cloneWithRoom returns a clone that has room for so many more claims. A client keeps the record that it has written,
// for each lease that it holds, so a step that adds no claim should ask for no room.
func (r *Record) cloneWithRoom(more int) *Record {
	c := *r
	c.Claims, c.brokenSession = nil, ""
	if len(r.Claims) > 0 {
		c.Claims = append(make([]Claim, 0, len(r.Claims)+more), r.Claims...)
	}
	for i := range c.Claims {
		c.Claims[i].renewed = false
	}
	c.Runs = r.Runs.clone()
	return &c
}
