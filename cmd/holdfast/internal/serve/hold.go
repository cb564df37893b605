package serve

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/acquire"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
)

const (
	waitingAfter  = 20 * time.Millisecond // a wait that is over sooner has no line of its own
	positionPause = 2 * time.Second       // between two looks at the queue, on behalf of all waiters of a lock
	minLineWait   = 250 * time.Millisecond
)

// holdBody is the body of hold.
type holdBody struct {
	acquireBody
	MinHold    int64  `json:"min_hold_ms"`
	MaxHold    int64  `json:"max_hold_ms"`
	Heartbeat  *int64 `json:"heartbeat_ms"`
	OnShutdown string `json:"on_shutdown"`
}

// campaignBody is the body of campaign.
type campaignBody struct {
	TTL        *int64 `json:"ttl_ms"`
	Wait       *int64 `json:"wait_ms"`
	Owner      string `json:"owner"`
	Note       string `json:"note"`
	Heartbeat  *int64 `json:"heartbeat_ms"`
	OnShutdown string `json:"on_shutdown"`
}

func (s *Server) hold(w http.ResponseWriter, r *http.Request) error {
	var body holdBody
	if err := cmp.Or(refuseKey(r), readBody(r, &body)); err != nil {
		return err
	}
	return s.holdLock(w, r, &body)
}

// campaign is hold: an election is a mutex, and the note of its holder is what the leader publishes.
func (s *Server) campaign(w http.ResponseWriter, r *http.Request) error {
	var b campaignBody
	if err := cmp.Or(refuseKey(r), readBody(r, &b)); err != nil {
		return err
	}
	body := holdBody{Heartbeat: b.Heartbeat, OnShutdown: b.OnShutdown}
	body.claimBody = claimBody{TTL: b.TTL, Wait: b.Wait, Owner: b.Owner, Note: b.Note}
	return s.holdLock(w, r, &body)
}

// holdLine are the fields of the lines of a hold.
type holdLine struct {
	Lock      string             `json:"lock,omitempty"`
	Hold      string             `json:"hold,omitempty"`
	Position  int                `json:"position,omitempty"`
	Waiters   *int               `json:"waiters,omitempty"`
	Holders   []shown.Claim      `json:"holders,omitempty"`
	Kind      holdfast.Kind      `json:"kind,omitempty"`
	Token     int64              `json:"token,omitempty"`
	Ref       string             `json:"ref,omitempty"`
	Owner     string             `json:"owner,omitempty"`
	TTL       int64              `json:"ttl_ms,omitempty"`
	Remaining *int64             `json:"remaining_ms,omitempty"`
	Heartbeat int64              `json:"heartbeat_ms,omitempty"`
	Waited    *int64             `json:"waited_ms,omitempty"`
	Cause     holdfast.LossCause `json:"cause,omitempty"`
	Message   string             `json:"message,omitempty"`
	Handle    string             `json:"handle,omitempty"`
	Permits   []int64            `json:"permits,omitempty"`
	Also      []alsoView         `json:"also,omitempty"`
}

// holdRun is one hold: the goroutine of its request runs it from the first line to the last.
type holdRun struct {
	*openHold
	server     *Server
	r          *http.Request
	connection *connection
	proxied    bool
	out        *eventStream
	claim      claim
	ttl        time.Duration
	heartbeat  time.Duration
	detaches   bool // on shutdown

	leases     *leases
	validUntil time.Time // as the last line has said: until then the client may work
}

// newHoldRun checks a request for a hold.
func (s *Server) newHoldRun(r *http.Request, b *holdBody) (*holdRun, error) {
	c, err := s.newClaims(r, &b.acquireBody)
	if err != nil {
		return nil, err
	}
	if c.opts.MinHold, err = milliseconds("min_hold_ms", b.MinHold); err != nil {
		return nil, err
	}
	if c.opts.MaxHold, err = milliseconds("max_hold_ms", b.MaxHold); err != nil {
		return nil, err
	}
	if c.opts.MaxHold != 0 && len(c.also) > 0 { // it would count from the first grant, while the next is waited for
		return nil, newProblem(codeInvalid, "max_hold_ms is for one lock, without also")
	}
	if b.OnShutdown != "" && b.OnShutdown != "release" && b.OnShutdown != "detach" {
		return nil, newProblem(codeInvalid, "on_shutdown must be release or detach, not %q", b.OnShutdown)
	}
	if b.OnShutdown == "detach" && !s.client.Info().Detached {
		return nil, newProblem(codeUnsupported, "claims cannot outlive the server in this store")
	}
	plan, err := c.explain(s.client)
	if err != nil {
		return nil, err
	}
	h := &holdRun{server: s, r: r, connection: connectionOf(r), proxied: isProxied(r), claim: c, ttl: plan.TTL,
		detaches: b.OnShutdown == "detach"}
	h.heartbeat = min(h.ttl/4, defaultStreamBeat)
	if b.Heartbeat != nil {
		every, err := milliseconds("heartbeat_ms", *b.Heartbeat)
		if err != nil || every < 100*time.Millisecond || every > time.Minute {
			return nil, newProblem(codeInvalid, "heartbeat_ms must be 100 to 60000")
		}
		h.heartbeat = min(h.heartbeat, every)
	}
	return h, nil
}

// holdLock answers a request that holds a lock for as long as its stream is open.
func (s *Server) holdLock(w http.ResponseWriter, r *http.Request, b *holdBody) error {
	h, err := s.newHoldRun(r, b)
	if err != nil {
		return err
	}
	if err := s.enterStream(); err != nil {
		return err
	}
	defer s.streams.leave()
	h.openHold = s.holds.add(r, &h.claim)
	defer s.holds.finish(h.openHold)
	h.out = s.newEventStream(w, r, max(h.ttl/4, minLineWait))
	defer h.out.stop()
	h.connection.prepareStream(h.ttl)
	defer h.connection.endStream()
	if err := h.wait(); err != nil || h.leases == nil {
		return err
	}
	h.keep()
	return nil
}

// granted is the outcome of a wait.
type granted struct {
	leases *leases
	err    error
}

// wait waits for the lock. Without an error and without a lease, the request is finished.
func (h *holdRun) wait() error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	began := time.Now()
	result := make(chan granted, 1)
	go func() {
		all, err := h.claim.acquire(ctx, h.server.client)
		result <- granted{all, err}
	}()
	// giveUp ends the wait. A lock that was granted meanwhile is released.
	giveUp := func(why error) {
		cancel(why)
		if g := <-result; g.leases != nil {
			g.leases.releaseUntold()
		}
	}
	views := make(chan holdfast.Lock, 1)
	names := slices.Sorted(slices.Values(append([]string{h.claim.name}, h.claim.also...))) // as they are acquired
	looked := 0
	look := time.NewTimer(waitingAfter)
	defer look.Stop()
	if !h.claim.waits() {
		look.Stop() // a lock that is held is an error with a status, however slow the store is
	}
	var last holdLine
	rights, err := h.server.checkRight(h.r)
	if err != nil {
		giveUp(err)
		return err
	}
	for {
		select {
		case g := <-result:
			if g.err != nil {
				h.setEnd(problemOf(g.err))
				return h.out.fail(g.err)
			}
			return h.begin(g.leases, time.Since(began))
		case <-h.r.Context().Done():
			giveUp(context.Canceled)
			return nil
		case <-rights:
			if rights, err = h.server.checkRight(h.r); err != nil {
				giveUp(err)
				h.setEnd(problemOf(err))
				return h.out.fail(err)
			}
		case <-h.server.closing:
			giveUp(errShuttingDown)
			h.setEnd(problemOf(errShuttingDown))
			return h.out.fail(errShuttingDown)
		case c := <-h.commands:
			giveUp(context.Canceled)
			end := newProblem(codeReleased, "the client has ended the wait")
			h.setEnd(end)
			c.reply <- holdReply{err: newProblem(codeNotAcquired, "the lock was not granted yet; the wait has ended")}
			return h.out.fail(end)
		case <-look.C:
			looked = 0
			h.server.views.look(ctx, names[looked], views)
			look.Reset(min(h.heartbeat, positionPause))
			if err := h.sendWaiting(&last, nil); err != nil {
				giveUp(context.Canceled)
				h.connection.abort()
			}
		case lock := <-views:
			if looked+1 < len(names) && !slices.ContainsFunc(lock.Holders, h.claim.isOthers) { // it waits for a later one
				looked++
				h.server.views.look(ctx, names[looked], views)
				continue
			}
			if err := h.sendWaiting(&last, &lock); err != nil {
				giveUp(context.Canceled)
				h.connection.abort()
			}
		}
	}
}

// sendWaiting tells where in the queue the claim is, if that has changed, or else that nothing has, if it is time for a
// line.
func (h *holdRun) sendWaiting(last *holdLine, lock *holdfast.Lock) error {
	line := *last
	if lock != nil {
		waiters := len(lock.Waiters)
		line = holdLine{Lock: lock.Name, Waiters: &waiters, Position: h.position(lock)}
		if maySee(h.r) {
			line.Holders = shown.NewClaims(lock.Holders, shown.HiddenRef)
		}
	}
	line.Lock, line.Hold = cmp.Or(line.Lock, h.claim.name), h.id
	first := last.Hold == ""
	changed := line.Position != last.Position || line.Lock != last.Lock || lock != nil && last.Waiters == nil ||
		line.Waiters != nil && last.Waiters != nil && *line.Waiters != *last.Waiters
	*last = line
	switch {
	case first || changed:
		return h.out.send(eventWaiting, time.Now(), line)
	case time.Since(h.out.sentAt) >= h.heartbeat:
		return h.out.send(eventHeartbeat, time.Now(), struct{}{})
	}
	return nil
}

// position is the place of the claim in the queue of the store, or 0 if it is not known. The claim is found by its
// owner, if no other claim has the same.
func (h *holdRun) position(lock *holdfast.Lock) (place int) {
	for i, c := range lock.Waiters {
		if !h.claim.isOthers(c) {
			if place != 0 {
				return 0
			}
			place = i + 1
		}
	}
	return place
}

// begin tells the client that it holds the lock.
func (h *holdRun) begin(all *leases, waited time.Duration) error {
	h.leases = all
	h.setLeases(all)
	lease := all.first()
	waitedFor := shown.Millis(waited)
	permits, _ := lease.Permits()
	err := h.sendHeld(eventAcquired, holdLine{Lock: h.claim.name, Hold: h.id, Kind: h.claim.kind, Token: lease.Token(),
		Ref: shown.HiddenRef(lease.Ref()), Owner: h.claim.opts.Owner, TTL: shown.Millis(h.ttl), Heartbeat: shown.Millis(h.heartbeat),
		Waited: &waitedFor, Permits: permits, Also: all.viewAlso()})
	if err != nil {
		h.endBySendError(err)
		h.leases = nil
	}
	return nil
}

// sendHeld sends a line that says how long the lock is valid.
func (h *holdRun) sendHeld(kind event, line holdLine) error {
	now := time.Now()
	left := h.leases.Remaining()
	remaining := shown.Millis(left)
	line.Remaining = &remaining
	h.validUntil = now.Add(left)
	_ = h.promise(h.validUntil) // before it is sent: the client may get it although that fails
	return h.out.send(kind, now, line)
}

// setHeldEnd says why a lock that was held is not held any more, and counts that. A hold has one end: what becomes of a
// client that was told of it is not another one.
func (h *holdRun) setHeldEnd(count *atomic.Int64, p *problem) {
	if first := h.setEnd(p); first {
		count.Add(1)
	}
}

// keep holds the lock until the hold ends.
func (h *holdRun) keep() {
	if h.leases == nil {
		return
	}
	requested := acquire.ReleaseRequested(h.leases.Context(), h.leases.all)
	beat := time.NewTicker(h.heartbeat)
	defer beat.Stop()
	rights, err := h.server.checkRight(h.r)
	if err != nil {
		h.endRevoked(err)
		return
	}
	for {
		select {
		case <-h.r.Context().Done():
			h.endGone()
			return
		case <-h.leases.Context().Done():
			h.endLost()
			return
		case <-rights:
			if rights, err = h.server.checkRight(h.r); err != nil {
				h.endRevoked(err)
				return
			}
		case <-requested:
			requested = nil
			h.setRequested()
			if err := h.sendHeld(eventReleaseRequested, holdLine{}); err != nil {
				h.endBySendError(err)
				return
			}
		case <-beat.C:
			if h.leases.Err() != nil {
				h.endLost()
				return
			}
			kind := eventHeartbeat
			if time.Now().Add(h.leases.Remaining()).After(h.validUntil.Add(time.Millisecond)) {
				kind = eventRenewed
			}
			if err := h.sendHeld(kind, holdLine{}); err != nil {
				h.endBySendError(err)
				return
			}
		case c := <-h.commands:
			if h.obey(c) {
				return
			}
		case <-h.server.closing:
			h.endByShutdown()
			return
		}
	}
}

// obey does what another request wants. It returns false if the hold goes on.
func (h *holdRun) obey(c holdCommand) (ended bool) {
	if c.detach {
		handle, err := h.leases.detach()
		switch {
		case errors.Is(err, holdfast.ErrLost):
			c.reply <- holdReply{err: err}
			h.endLost()
		case errors.Is(err, holdfast.ErrUnsupported) || errors.Is(err, holdfast.ErrInvalid):
			c.reply <- holdReply{err: err}
			return false
		case err != nil: // nobody knows whether the handle is good
			h.setEnd(problemOf(err))
			c.reply <- holdReply{err: err}
			_ = h.out.fail(err)
		default:
			h.setHeldEnd(&h.server.counts.detached, newProblem(codeReleased, "the hold was detached"))
			c.reply <- holdReply{handle: handle}
			h.sendDetached(handle)
		}
		return true
	}
	err := h.leases.Release()
	switch {
	case err == nil:
		h.setHeldEnd(&h.server.counts.released, newProblem(codeReleased, "the lock was released before"))
		c.reply <- holdReply{}
		_ = h.out.send(eventReleased, time.Now(), struct{}{})
	case errors.Is(err, holdfast.ErrLost):
		c.reply <- holdReply{err: err}
		h.setHeldEnd(&h.server.counts.lost, problemOf(err))
		_ = h.sendLost(h.lossOf(err))
	default: // the library goes on in the background
		c.reply <- holdReply{err: err}
		h.setHeldEnd(&h.server.counts.released, problemOf(err))
		_ = h.out.fail(err)
	}
	return true
}

func (h *holdRun) sendDetached(handle lockHandle) {
	_ = h.out.send(eventDetached, time.Now(),
		holdLine{Handle: encodeHandle(handle.Handle, handle.also...), Token: handle.Token, TTL: shown.Millis(handle.TTL)})
}

// lossOf says which lock was lost, and why.
func (h *holdRun) lossOf(err error) *problem {
	name := cmp.Or(problemOf(err).Lock, h.claim.name)
	cause, text := holdfast.LossGone, errorText(err)
	var loss *holdfast.LossError
	if errors.As(err, &loss) {
		cause, text = loss.Cause, errorText(loss)
	}
	if len(h.claim.also) > 0 {
		text = name + ": " + text
	}
	return lossProblem(name, cause, text)
}

func (h *holdRun) sendLost(loss *problem) error {
	return h.out.send(eventLost, time.Now(), holdLine{Lock: loss.Lock, Cause: loss.Cause, Message: loss.Detail})
}

// endLost tells the client that the lock is lost. The claim may still be in the store, where it keeps others out: it is
// removed when the client has stopped, or has had the whole TTL to do so.
func (h *holdRun) endLost() {
	h.endTold(&h.server.counts.lost, h.lossOf(h.leases.Err()), h.ttl)
}

// endRevoked ends the hold of a caller that may not hold the lock any more. It may be working, as in endLost.
func (h *holdRun) endRevoked(err error) {
	name := cmp.Or(problemOf(err).Lock, h.claim.name)
	h.endTold(&h.server.counts.revoked, lossProblem(name, causeRevoked, "the caller may not hold this lock any more"), h.ttl)
}

// endTold tells the client that the lock is lost, and waits for it to stop, for as long as limit.
func (h *holdRun) endTold(count *atomic.Int64, end *problem, limit time.Duration) {
	h.setHeldEnd(count, end)
	if err := h.sendLost(end); err != nil {
		h.endBySendError(err)
		return
	}
	h.waitUntilStopped(end, limit)
}

// waitUntilStopped waits until the client, which was told that the lock is lost, has closed its connection or asks for
// the release, and removes the claim. A client that does neither within the limit, or is cut off, may not have read
// that line, and counts as one that cannot be reached.
func (h *holdRun) waitUntilStopped(end *problem, limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	closing := h.server.closing
	if end.Cause == causeShutdown {
		closing = nil
	}
	for {
		select {
		case <-h.r.Context().Done():
			if h.hasClientClosed() {
				_ = h.leases.Release()
			} else {
				h.endUnreachable()
			}
			return
		case <-timer.C:
			h.endUnreachable()
			return
		case c := <-h.commands:
			c.reply <- holdReply{err: end}
			if !c.detach {
				_ = h.leases.Release()
				return
			}
		case <-closing: // at most for the grace period from now on
			if h.server.abandoned.Load() {
				_ = h.leases.Release()
				return
			}
			closing = nil
			timer.Reset(min(limit, h.server.config.Grace))
		}
	}
}

// endBySendError ends the hold of a client to which a line could not be sent.
func (h *holdRun) endBySendError(err error) {
	if errors.Is(err, syscall.EPIPE) { // there is an end of the connection; the reader finds out which
		h.endGone()
		return
	}
	h.endUnreachable()
}

// endGone ends the hold of a client whose connection has ended.
func (h *holdRun) endGone() {
	if !h.hasClientClosed() {
		h.endUnreachable()
		return
	}
	h.setHeldEnd(&h.server.counts.closed, newProblem(codeReleased, "the connection was closed, so the lock was released"))
	_ = h.leases.Release()
}

// hasClientClosed reports whether the connection has ended because the client closed it, or died: so it has stopped. It
// is false if the connection ended in another way, or if that may be. The end of the client's direction alone proves
// nothing, since it may read on: then it gets another line. If it does not, its system refuses the line.
func (h *holdRun) hasClientClosed() bool {
	switch {
	case h.server.abandoned.Load():
		return true
	case h.server.base.Err() != nil: // this server ends the connection
		return false
	case h.proxied:
		return false
	case h.connection.end.Load() == closedByClient:
		return true
	case !h.connection.isInputEnded():
		return h.connection.end.Load() == closedByClient
	}
	loss := lossProblem(h.claim.name, holdfast.LossExpired, "the client has ended its side of the connection")
	for pause := time.Millisecond; pause < endWait; pause *= 2 {
		if err := h.sendLost(loss); err != nil {
			return errors.Is(err, syscall.EPIPE) && h.connection.end.Load() == inputEnded
		}
		time.Sleep(pause)
	}
	return false
}

// endUnreachable ends the hold of a client that cannot be told anything. It may be working, so the lock is kept for as
// long as it was told last. It does not return: it aborts the request.
func (h *holdRun) endUnreachable() {
	end := lossProblem(h.claim.name, holdfast.LossExpired, "the client could not be reached, so the lock was released")
	h.setHeldEnd(&h.server.counts.unreachable, end)
	h.server.leftovers.Add(1)
	all := h.leases
	go func() {
		defer h.server.leftovers.Done()
		timer := time.NewTimer(time.Until(h.promisedUntil()))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-h.server.closing:
			if h.server.abandoned.Load() {
				break
			}
			if _, err := all.detach(); err == nil {
				return // the TTL ends it
			}
			<-timer.C
		}
		_ = all.Release()
	}()
	h.connection.abort()
}

// endByShutdown ends the hold because the server ends: as its client has asked for.
func (h *holdRun) endByShutdown() {
	if h.server.abandoned.Load() {
		h.endGone()
		return
	}
	if h.detaches {
		if handle, err := h.leases.detach(); err == nil {
			h.setHeldEnd(&h.server.counts.shutdown, newProblem(codeReleased, "the hold was detached"))
			h.sendDetached(handle)
			return
		}
		if h.leases.Err() != nil {
			h.endLost()
			return
		}
	}
	h.endTold(&h.server.counts.shutdown, lossProblem(h.claim.name, causeShutdown, "the server shuts down"),
		h.server.config.Grace)
}
