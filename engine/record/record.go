package record

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Record is the whole of a lock, as it stands in a table. The steps below change it in place and are pure otherwise:
// they read no clock and no store. A caller works on a copy of its own and throws it away when the swap is refused.
type Record struct {
	Kind   driver.Kind  // empty while idle
	Limit  int64        // 0 while idle
	Token  int64        // the largest ever granted on this lock; only grows
	Idle   int64        // store's clock when the last claim left, in microseconds; 0 while any stands
	Claims []Claim      // in order of arrival, the holders among them
	Ended  []EndedClaim // claims that others have ended, so that their owners can tell that from their own release
	// NotesDroppedUntil is up to when a note may be missing from Ended, since there were too many: store's clock, in microseconds; 0:
	// none is.
	NotesDroppedUntil int64

	// Foreign is never stored: a foreign client holds the lock up to this time of the store's clock, in microseconds, and
	// no claim stands; 0: none does.
	Foreign int64
}

// NoEnd is when a foreign client's hold ends that has no end.
const NoEnd = math.MaxInt64

// Claim is one claim in a Record. It ends by itself if nothing is heard of it for Allow: every write by its owner raises
// Beat, so that others can tell silence from life without comparing clocks.
type Claim struct {
	ID               string
	Session          string // the client behind it, where the table can tell whether that is still there
	Owner            string
	Meta             string
	Weight           int64
	TTL              time.Duration
	State            State
	Token            int64         // 0 until granted
	Beat             int64         // grows with every sign of life, and with every call
	SilenceLimit     time.Duration // how long it may be silent from this beat on
	ExpiresAt        int64         // store's clock, in microseconds, past which it surely was silent for Allow; 0: not known
	Since            int64         // store's clock when it was granted, or came; 0: not known; only shown
	ConfirmWindow    time.Duration // how long it needs to show itself when it is called, if that is longer than others would give it
	Detached         bool          // nobody is behind it: it ends by Allow alone
	ReleaseRequested bool          // its holder is asked to give up
	Broken           bool          // it is not renewed any more
}

// EndedClaim is a note of a claim that somebody else has ended: an operator, or whoever came when its time was over. It is written in
// the same step, and kept for as long as the claim's owner may ask for it.
type EndedClaim struct {
	ID    string
	Cause driver.LossCause
	Until int64 // store's clock, in microseconds, up to when it is kept
}

// State is where a claim is on its way.
type State string

// The states. A called claim still waits: it is asked to show itself within a window, because its turn has come or
// because the one before it did not answer. Being called gives it nothing; only a grant that it writes itself does.
const (
	Waiting  State = "waiting"
	Promoted State = "called"
	Granted  State = "granted"
)

// StepInput is all that a step knows of time and of others.
type StepInput struct {
	ClockTrusted  bool  // whether the store's clock may judge
	Now           int64 // best estimate of the store's clock in microseconds, for tokens and to be shown
	Earliest      int64 // the store's clock is surely past this
	Latest        int64 // and surely not past this
	ConfirmWindow time.Duration
	BeatSkip      int64                 // by how much a beat grows beyond the next; random
	LivenessOf    func(*Claim) Liveness // what has been found out about a claim beside its Ends
}

// Liveness is what is known of a claim's client.
type Liveness int

// The verdicts.
const (
	Alive           Liveness = iota // or not known
	StoppedRenewing                 // watched unchanged for longer than it may be
	Dead                            // its client is not there any more
)

// findClaim gives the claim with that id, or nil.
func (r *Record) findClaim(id string) *Claim {
	for i := range r.Claims {
		if r.Claims[i].ID == id {
			return &r.Claims[i]
		}
	}
	return nil
}

// fitsLimit reports whether the claim may be granted: its weight and that of all ahead of it are within the limit.
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

func (r *Record) totalWeight() (sum int64) {
	for i := range r.Claims {
		sum += r.Claims[i].Weight
	}
	return sum
}

func (r *Record) count(granted bool) (n int) {
	for i := range r.Claims {
		if (r.Claims[i].State == Granted) == granted {
			n++
		}
	}
	return n
}

// judgeClaim judges one claim: by the store's clock, and by what the observer found out.
func (m StepInput) judgeClaim(c *Claim) Liveness {
	v := m.LivenessOf(c)
	if v == Alive && m.isExpired(c) {
		return StoppedRenewing
	}
	return v
}

// isExpired reports whether a claim's time is surely over by the store's clock.
func (m StepInput) isExpired(c *Claim) bool {
	return m.ClockTrusted && c.ExpiresAt > 0 && m.Earliest > c.ExpiresAt
}

// isExpiredHolder reports whether a holder's is.
func (m StepInput) isExpiredHolder(c *Claim) bool { return c.State == Granted && m.isExpired(c) }

// foreignEnd gives the end of a foreign client's hold, or 0 when there is none or it is over.
func (m StepInput) foreignEnd(r *Record) int64 {
	if m.ClockTrusted && m.Earliest > r.Foreign {
		return 0
	}
	return r.Foreign
}

// foreignRef names the foreign holder to an operator.
func (r *Record) foreignRef() string { return fmt.Sprintf("foreign-%d", r.Foreign) }

// expiryAfter is what a claim's Ends becomes when it may be silent for d from now on. It is counted from the latest that the
// store's clock can be, so that nobody judges it early.
func (m StepInput) expiryAfter(d time.Duration) int64 {
	if !m.ClockTrusted {
		return 0
	}
	return m.Latest + d.Microseconds()
}

// hasPassed reports whether a time of the store's clock is surely over.
func (m StepInput) hasPassed(at int64) bool { return m.ClockTrusted && m.Earliest > at }

// maxEndedNotes is how many notes of ended claims a record has: as many as may wait in line, so that an operator can break all of
// those at once and each of them is told.
const maxEndedNotes = driver.MaxWaiters

// addNote leaves a note of a claim that is ended by others. A release of the claim, which asks again for as long as its patience
// lasts, looks for it; so does a renewal, until the claim's own time is over.
func (r *Record) addNote(c *Claim, loss driver.LossCause, m StepInput) {
	until := max(m.Latest, m.Now) + (c.TTL + driver.UnreachableTimeout(c.TTL)).Microseconds()
	r.Ended = append(slices.Clone(r.Ended), EndedClaim{ID: c.ID, Cause: loss, Until: until})
	if len(r.Ended) > maxEndedNotes {
		soonest := slices.MinFunc(r.Ended, func(a, b EndedClaim) int { return cmp.Compare(a.Until, b.Until) })
		r.NotesDroppedUntil = max(r.NotesDroppedUntil, soonest.Until)
		r.dropNote(soonest.ID)
	}
}

// dropNote removes the note of a claim.
func (r *Record) dropNote(id string) {
	r.dropNotesIf(func(n EndedClaim) bool { return n.ID == id })
}

func (r *Record) dropNotesIf(drop func(EndedClaim) bool) {
	if slices.ContainsFunc(r.Ended, drop) { // others may look at the same notes
		r.Ended = slices.DeleteFunc(slices.Clone(r.Ended), drop)
	}
}

// dropOldNotes removes the notes that nobody asks for any more.
func (r *Record) dropOldNotes(m StepInput) {
	r.dropNotesIf(func(n EndedClaim) bool { return m.hasPassed(n.Until) })
	if m.hasPassed(r.NotesDroppedUntil) {
		r.NotesDroppedUntil = 0
	}
}

// notedCause tells how a claim was ended by somebody else; empty if there is no note of it.
func (r *Record) notedCause(id string) driver.LossCause {
	for _, n := range r.Ended {
		if n.ID == id {
			return n.Cause
		}
	}
	return ""
}

// expireAndPromote removes the claims that are over, all but keep's, and calls those whose turn has come.
//
// A claim that was called and did not answer tells that its client died while it waited, and then others may have died
// with it. So all that wait are called, and those that do not answer go together: ten dead waiters in line cost little
// more than one.
func (r *Record) expireAndPromote(m StepInput, keep string) {
	r.Foreign = m.foreignEnd(r)
	r.dropOldNotes(m)
	unanswered := false
	kept := r.Claims[:0:0]
	for i := range r.Claims {
		c := &r.Claims[i]
		v := Alive
		if c.ID != keep {
			v = m.judgeClaim(c)
		}
		switch {
		case v == Alive:
			kept = append(kept, *c)
		case c.State == Granted:
			r.addNote(c, c.lossCause(v), m)
		}
		unanswered = unanswered || c.State == Promoted && v == StoppedRenewing
	}
	if len(kept) == 0 {
		kept = nil // which would keep those who have left in memory
	}
	r.Claims = kept
	if unanswered {
		n := time.Duration(r.count(false))
		for i := range r.Claims {
			if r.Claims[i].State == Waiting {
				r.Claims[i].promote(m, m.ConfirmWindow+m.ConfirmWindow*n/8)
			}
		}
	}
	var sum int64
	for i := range r.Claims {
		c := &r.Claims[i]
		sum += c.Weight
		if c.State == Waiting && sum <= r.Limit {
			c.promote(m, m.ConfirmWindow)
		}
	}
	if len(r.Claims) == 0 && r.Idle == 0 {
		r.Kind, r.Limit, r.Idle = "", 0, max(m.Now, 1)
	}
}

// lossCause is why a holder is removed that is found so.
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

// advanceBeat gives the claim a beat that no observer has seen yet. The next number would not do: a store that falls back to what it had
// forgets beats that others have read, and the same ones, written once more, would look like silence since then.
func (c *Claim) advanceBeat(m StepInput) { c.Beat += 1 + m.BeatSkip }

// promote asks a waiting claim to show itself within d.
func (c *Claim) promote(m StepInput, d time.Duration) {
	c.State = Promoted
	c.advanceBeat(m)
	c.SilenceLimit = min(max(d, c.ConfirmWindow), c.TTL)
	c.ExpiresAt = m.expiryAfter(c.SilenceLimit)
}

// renewSilenceLimit is a sign of life by the claim's owner.
func (c *Claim) renewSilenceLimit(m StepInput) {
	c.advanceBeat(m)
	c.SilenceLimit = c.TTL
	c.ExpiresAt = m.expiryAfter(c.TTL)
}

// grantClaim makes a claim that fits a holder, under the next token.
func (r *Record) grantClaim(c *Claim, m StepInput) {
	r.Token = max(r.Token+1, m.Now)
	c.State, c.Token, c.Since = Granted, r.Token, max(m.Now, 0)
	c.renewSilenceLimit(m)
}

// replaceToken gives the last grant the token that the store has made for it.
func (r *Record) replaceToken(token int64) {
	for i := range r.Claims {
		if r.Claims[i].Token == r.Token {
			r.Claims[i].Token = token
		}
	}
	r.Token = token
}

// Acquire is the step of a claim that wants to be granted: it comes, comes again, or stands in line already. It returns
// the claim as it stands after the step, or an error and no claim. A claim that stands in line gives a sign of life.
//
// With queue false the claim is granted at once, or refused with a *driver.HeldError.
func (r *Record) Acquire(c Claim, kind driver.Kind, limit int64, queue bool, info driver.Info, m StepInput) (*Claim, error) {
	r.expireAndPromote(m, c.ID)
	if r.notedCause(c.ID) == driver.LossBroken {
		return nil, &driver.LossError{Cause: driver.LossBroken}
	}
	if mine := r.findClaim(c.ID); mine != nil {
		mine.ConfirmWindow = c.ConfirmWindow
		switch {
		case mine.State == Granted && mine.Broken:
			return nil, &driver.LossError{Cause: driver.LossBroken}
		case mine.State == Granted:
			mine.renewSilenceLimit(m)
		case r.fitsLimit(c.ID):
			if r.count(true) >= info.MaxHolders {
				return nil, fmt.Errorf("%w: %d holders", driver.ErrQueueFull, info.MaxHolders)
			}
			r.grantClaim(mine, m)
		default:
			mine.State = Waiting
			mine.renewSilenceLimit(m)
		}
		return mine, nil
	}
	if len(r.Claims) > 0 && (r.Kind != kind || r.Limit != limit) {
		return nil, fmt.Errorf("%w: it stands as %s of %d, and was asked for as %s of %d",
			driver.ErrMismatch, r.Kind, r.Limit, kind, limit)
	}
	fits := r.totalWeight()+c.Weight <= limit
	switch {
	case r.Foreign != 0, !fits && !queue:
		return nil, r.heldError(m)
	case !fits && r.count(false) >= info.MaxWaiters:
		return nil, fmt.Errorf("%w: %d wait for it", driver.ErrQueueFull, info.MaxWaiters)
	case fits && r.count(true) >= info.MaxHolders:
		return nil, fmt.Errorf("%w: %d holders", driver.ErrQueueFull, info.MaxHolders)
	}
	r.Kind, r.Limit, r.Idle = kind, limit, 0
	r.dropNote(c.ID) // that was of the claim as it stood before
	c.State, c.Since = Waiting, max(m.Now, 0)
	r.Claims = append(r.Claims, c)
	mine := &r.Claims[len(r.Claims)-1]
	mine.renewSilenceLimit(m)
	if fits {
		r.grantClaim(mine, m)
	}
	return mine, nil
}

// heldError says who stands in the way.
func (r *Record) heldError(m StepInput) error {
	l := r.describeLock("", m)
	return &driver.HeldError{Holders: l.Holders, Waiting: len(l.Waiters)}
}

// Renew is the step of a holder that is still there. A claim that does not stand, stands under another token, or stands though
// its time is over, is lost; it is never made again.
func (r *Record) Renew(id string, token int64, m StepInput) (*Claim, error) {
	c := r.findClaim(id)
	if c == nil || c.State != Granted || c.Token != token {
		return nil, &driver.LossError{Cause: r.lossCause(id, token)}
	}
	if c.Broken {
		return nil, &driver.LossError{Cause: driver.LossBroken}
	}
	if m.isExpiredHolder(c) {
		return nil, &driver.LossError{Cause: driver.LossExpired}
	}
	c.renewSilenceLimit(m)
	return c, nil
}

// lossCause is why a grant does not stand any more.
func (r *Record) lossCause(id string, token int64) driver.LossCause {
	loss := r.notedCause(id)
	switch {
	case loss == driver.LossBroken:
		return loss
	case r.Foreign != 0, r.count(true) > 0 && r.Token > token:
		return driver.LossTaken
	default:
		return cmp.Or(loss, driver.LossGone)
	}
}

// Release is the step of a claim that leaves. It reports whether the claim was there, and whether it was there in vain: a holder's
// time was over.
func (r *Record) Release(id string, m StepInput) (there, past bool) {
	for i := range r.Claims {
		if c := &r.Claims[i]; c.ID == id {
			past = m.isExpiredHolder(c)
			r.Claims = append(r.Claims[:i:i], r.Claims[i+1:]...)
			r.expireAndPromote(m, "")
			return true, past
		}
	}
	return false, false
}

// Detach is the step of a holder that leaves its claim standing for d, with nobody behind it.
func (r *Record) Detach(id string, token int64, d time.Duration, m StepInput) error {
	c, err := r.Renew(id, token, m)
	if err != nil {
		return err
	}
	c.Detached, c.Session = true, ""
	c.TTL, c.SilenceLimit, c.ExpiresAt = d, d, m.expiryAfter(d)
	return nil
}

// SetWeight is the step of a holder that wants more of the lock, or less. What is granted stays within the limit, counted
// in order as ever.
func (r *Record) SetWeight(id string, token, weight int64, m StepInput) error {
	r.expireAndPromote(m, id)
	c, err := r.Renew(id, token, m)
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
			return r.heldError(m)
		}
	}
	r.expireAndPromote(m, id)
	return nil
}

// Break is the step of an operator.
func (r *Record) Break(id string, mode driver.BreakMode, m StepInput) error {
	c := r.findClaim(id)
	if r.Foreign != 0 && id == r.foreignRef() {
		if mode != driver.BreakForce {
			return fmt.Errorf("%w: a foreign holder cannot be told", driver.ErrUnsupported)
		}
		r.Foreign, r.Token, r.Idle = 0, max(r.Token+1, m.Now), max(m.Now, 1)
		r.addNote(&Claim{ID: id, TTL: maxSettleTime}, driver.LossBroken, m)
		return nil
	}
	if c == nil {
		return fmt.Errorf("no such claim stands: %w", driver.ErrLost)
	}
	switch {
	case mode == driver.BreakRequestRelease:
		c.ReleaseRequested = true
	case mode == driver.BreakGraceful && c.State == Granted:
		c.Broken = true
	default:
		if c.State == Granted {
			r.Token = max(r.Token+1, m.Now)
		}
		r.addNote(c, driver.LossBroken, m)
		r.Release(id, m)
	}
	return nil
}

// Check reports what is wrong with a record, before it is written and after it was read.
func (r *Record) Check() error {
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
			return fmt.Errorf("claim id %q is empty or stands twice", c.ID)
		case c.Weight < 1 || c.Weight > r.Limit:
			return fmt.Errorf("claim %s weighs %d of %d", c.ID, c.Weight, r.Limit)
		case c.TTL <= 0 || c.SilenceLimit <= 0:
			return fmt.Errorf("claim %s has TTL %v, allowance %v", c.ID, c.TTL, c.SilenceLimit)
		case c.State != Granted && c.Token != 0, c.State == Granted && (c.Token < 1 || c.Token > r.Token || tokens[c.Token]):
			return fmt.Errorf("claim %s is %s with token %d, the largest being %d", c.ID, c.State, c.Token, r.Token)
		case c.State == Granted && sum > r.Limit:
			return fmt.Errorf("claim %s is granted beyond the limit: %d of %d", c.ID, sum, r.Limit)
		case c.State != Waiting && c.State != Promoted && c.State != Granted:
			return fmt.Errorf("claim %s has the unknown state %q", c.ID, c.State)
		}
		ids[c.ID], tokens[c.Token] = true, true
	}
	return nil
}

// clone gives a copy whose claims can be changed.
func (r *Record) clone() *Record {
	c := *r
	c.Claims = append(make([]Claim, 0, len(r.Claims)+1), r.Claims...)
	return &c
}
