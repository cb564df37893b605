package serve

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operator"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
	"github.com/holdfast-go/holdfast/driver"
)

// listTimeout bounds a listing, of which a store may have much.
const listTimeout = 25 * time.Second

// lockList is the answer to a listing of locks.
type lockList struct {
	Locks      []shown.Lock `json:"locks"`
	Truncated  bool         `json:"truncated"`
	Unreadable []unreadable `json:"unreadable"`
}

// unreadable is a lock or a key that could not be read.
type unreadable struct {
	Lock    string `json:"lock,omitempty"`
	Key     string `json:"key,omitempty"`
	Code    code   `json:"code"`
	Message string `json:"message"`
}

// viewLock makes the JSON of a lock for those who may not know the refs of its claims.
func (s *Server) viewLock(lock holdfast.Lock) shown.Lock {
	return shown.NewLock(s.client.Info(), lock, shown.HiddenRef)
}

// listLocks answers with the locks that the caller may see, sorted by name. A lock that cannot be read is listed
// apart.
func (s *Server) listLocks(w http.ResponseWriter, r *http.Request) error {
	limit, err := queryNumber(r, "limit", 1000, 1, 10_000)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), listTimeout)
	defer cancel()
	list := lockList{Locks: []shown.Lock{}, Unreadable: []unreadable{}}
	for lock, err := range s.client.List(ctx, r.URL.Query().Get("prefix")) {
		switch {
		case err != nil && lock.Name == "":
			return err
		case !callerOf(r).rightsOn(lock.Name).See:
		case len(list.Locks)+len(list.Unreadable) == limit:
			list.Truncated = true
		case err != nil:
			p := problemOf(err)
			list.Unreadable = append(list.Unreadable, unreadable{Lock: lock.Name, Code: p.Code, Message: p.Error()})
		default:
			list.Locks = append(list.Locks, s.viewLock(lock))
		}
		if list.Truncated {
			break
		}
	}
	slices.SortFunc(list.Locks, func(a, b shown.Lock) int { return strings.Compare(a.Lock, b.Lock) })
	return writeJSON(w, list)
}

// inspect reads the lock that a request names.
func (s *Server) inspect(r *http.Request) (holdfast.Lock, error) {
	name := nameOf(r, "name")
	ctx, cancel := context.WithTimeout(r.Context(), storeTimeout)
	defer cancel()
	return s.client.Inspect(ctx, name)
}

func (s *Server) showLock(w http.ResponseWriter, r *http.Request) error {
	lock, err := s.inspect(r)
	if err != nil {
		return err
	}
	return writeJSON(w, s.viewLock(lock))
}

// watchLock streams a line for each state of the lock.
func (s *Server) watchLock(w http.ResponseWriter, r *http.Request) error {
	name := nameOf(r, "name")
	if _, err := s.client.Mutex(name, nil).Explain(); err != nil && problemOf(err).Code == codeInvalid {
		return err
	}
	return sendSequence(s, w, r, func(done <-chan struct{}) iter.Seq2[holdfast.Lock, error] {
		return s.client.Watch(untilDone(done), name)
	}, func(out *eventStream, at time.Time, lock holdfast.Lock, err error) (bool, error) {
		if err != nil {
			return false, nil
		}
		return true, out.send(eventLock, at, s.viewLock(lock))
	})
}

// untilDone is a context that ends when a channel is closed.
func untilDone(done <-chan struct{}) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-done; cancel() }()
	return ctx
}

// claimRef is the body of request-release.
type claimRef struct {
	Ref string `json:"ref"`
}

// breakBody is the body of break.
type breakBody struct {
	Ref    string `json:"ref"`
	Force  bool   `json:"force"`
	Reason string `json:"reason"`
}

// changeView is the answer to break and request-release.
type changeView struct {
	Lock  string       `json:"lock"`
	Claim *shown.Claim `json:"claim,omitempty"` // if the caller may see it
	Mode  string       `json:"mode,omitempty"`
}

// chooseClaim finds the claim that a request names: by the ref that it was shown, or the only holder.
func chooseClaim(lock holdfast.Lock, ref string) (*operator.Claim, error) {
	claim, err := operator.FindClaim(lock, ref, shown.HiddenRef)
	switch {
	case errors.Is(err, operator.ErrAmbiguous):
		p := newProblem(codeInvalid, "the lock has %d holders; give the ref of one", len(lock.Holders))
		p.Holders = shown.NewClaims(lock.Holders, shown.HiddenRef)
		return nil, p
	case err != nil:
		return nil, newProblem(codeNotFound, "%s", err)
	}
	return claim, nil
}

// breakLock breaks a holder's claim, gracefully or by force, which is another right of the audit log.
func (s *Server) breakLock(w http.ResponseWriter, r *http.Request) error {
	var body breakBody
	if err := readBody(r, &body); err != nil {
		return err
	}
	mode, action := holdfast.BreakGraceful, operator.Break
	if body.Force {
		mode, action = holdfast.BreakForce, operator.BreakForce
	}
	return s.changeClaim(w, r, body.Ref, mode.String(), operator.Entry{Action: action, Reason: body.Reason})
}

func (s *Server) requestRelease(w http.ResponseWriter, r *http.Request) error {
	var body claimRef
	if err := readBody(r, &body); err != nil {
		return err
	}
	return s.changeClaim(w, r, body.Ref, "", operator.Entry{Action: operator.RequestRelease})
}

// changeClaim finds a claim, writes the audit log, and acts.
func (s *Server) changeClaim(w http.ResponseWriter, r *http.Request, ref, mode string, entry operator.Entry) error {
	name := nameOf(r, "name")
	// A client that goes must not make the audit log say that what has been done has failed.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), storeTimeout)
	defer cancel()
	lock, err := s.client.Inspect(ctx, name)
	if err != nil {
		return err
	}
	claim, err := chooseClaim(lock, ref)
	if err != nil {
		return err
	}
	entry.Lock, entry.Ref, entry.Owner, entry.Token = name, shown.HiddenRef(claim.Ref), claim.Owner, claim.Token
	err = s.audited(r, entry, func() error { return claim.Act(ctx, s.client, entry.Action, entry.Reason) })
	if err != nil {
		return err
	}
	view := changeView{Lock: name, Mode: mode}
	if maySee(r) {
		before := shown.NewClaim(claim.ClaimInfo, shown.HiddenRef)
		view.Claim = &before
	}
	return writeJSON(w, view)
}

// planView is the answer to explain.
type planView struct {
	Lock       string        `json:"lock"`
	Kind       holdfast.Kind `json:"kind"`
	Limit      int64         `json:"limit"`
	Keys       []string      `json:"keys"`
	Notes      []string      `json:"notes"`
	TTL        int64         `json:"ttl_ms"`
	RenewEvery int64         `json:"renew_every_ms"`
	Margin     int64         `json:"margin_ms"`
	DeadHolder int64         `json:"dead_holder_ms"`
	Now        shown.Lock    `json:"now"`
}

// explainLock answers what a request for the lock would do, and does not do it.
func (s *Server) explainLock(w http.ResponseWriter, r *http.Request) error {
	var body holdBody
	if err := readBody(r, &body); err != nil {
		return err
	}
	lock, err := s.inspect(r)
	if err != nil {
		return err
	}
	c, err := newClaim(r, nameOf(r, "name"), &body.claimBody)
	if err != nil {
		return err
	}
	plan, err := c.request().Lockable(s.client).Explain()
	if err != nil {
		return err
	}
	limit := map[holdfast.Kind]int64{holdfast.KindMutex: 1, holdfast.KindRW: 1 << 20, holdfast.KindSemaphore: c.limit}
	return writeJSON(w, planView{Lock: c.name, Kind: c.kind, Limit: limit[c.kind], Keys: append([]string{}, plan.Keys...),
		Notes: append([]string{}, plan.Notes...), TTL: shown.Millis(plan.TTL), RenewEvery: shown.Millis(plan.TTL / 3),
		Margin: shown.Millis(driver.Margin(plan.TTL)), DeadHolder: shown.Millis(plan.TTL),
		Now: s.viewLock(lock)})
}

// storeView is the answer to /v1/store.
type storeView struct {
	Store       string          `json:"store"`
	Engine      string          `json:"engine"`
	Tier        string          `json:"tier"`
	ExpiredBy   string          `json:"expired_by"`
	ExpiryClock string          `json:"expiry_clock"`
	Order       string          `json:"order"`
	Kinds       []holdfast.Kind `json:"kinds"`
	Detached    bool            `json:"detached"`
	MinTTL      int64           `json:"min_ttl_ms"`
	MaxTTL      int64           `json:"max_ttl_ms"`
}

func (s *Server) showStore(w http.ResponseWriter, _ *http.Request) error {
	i := s.client.Info()
	return writeJSON(w, storeView{Store: s.config.Store, Engine: i.Engine, Tier: string(i.Tier),
		ExpiredBy: string(i.ExpiredBy), ExpiryClock: string(i.ExpiryClock), Order: string(i.Order), Kinds: i.Kinds,
		Detached: i.Detached, MinTTL: shown.Millis(i.MinTTL), MaxTTL: shown.Millis(i.MaxTTL)})
}

// findingList is the answer to /v1/doctor.
type findingList struct {
	Store    string          `json:"store"`
	Findings []shown.Finding `json:"findings"`
}

// examineStore answers with the findings of doctor.
func (s *Server) examineStore(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), listTimeout)
	defer cancel()
	found, err := s.client.Examine(ctx)
	if err != nil {
		return err
	}
	return writeJSON(w, findingList{Store: s.config.Store, Findings: shown.NewFindings(found)})
}
