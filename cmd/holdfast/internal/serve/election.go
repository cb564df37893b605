package serve

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
)

// leaderView says who leads.
type leaderView struct {
	Lock   string       `json:"lock"`
	Leader *shown.Claim `json:"leader,omitempty"`
}

// unknownView says why it is not known who leads.
type unknownView struct {
	Code    code   `json:"code"`
	Message string `json:"message"`
}

func viewLeader(name string, leader holdfast.ClaimInfo) leaderView {
	v := leaderView{Lock: name}
	if leader.Ref != "" {
		claim := shown.NewClaim(leader, shown.HiddenRef)
		v.Leader = &claim
	}
	return v
}

// showLeader answers GET /v1/elections/{name}: who leads now.
func (s *Server) showLeader(w http.ResponseWriter, r *http.Request) error {
	name := nameOf(r, "name")
	ctx, cancel := context.WithTimeout(r.Context(), storeTimeout)
	defer cancel()
	leader, err := s.client.Election(name, nil).Leader(ctx)
	if err != nil {
		return err
	}
	return writeJSON(w, viewLeader(name, leader))
}

// observe streams a line for each new leader. While the store does not answer, a line says that the leader is
// unknown.
func (s *Server) observe(w http.ResponseWriter, r *http.Request) error {
	name := nameOf(r, "name")
	if _, err := s.client.Mutex(name, nil).Explain(); err != nil {
		return err
	}
	return sendSequence(s, w, r, func(done <-chan struct{}) iter.Seq2[holdfast.ClaimInfo, error] {
		return s.client.Election(name, nil).Observe(untilDone(done))
	}, func(out *eventStream, at time.Time, leader holdfast.ClaimInfo, err error) (bool, error) {
		switch {
		case err == nil:
			return true, out.send(eventLeader, at, viewLeader(name, leader))
		case errors.Is(err, context.Canceled):
			return false, nil
		}
		p := problemOf(err)
		return true, out.send(eventUnknown, at, unknownView{Code: p.Code, Message: p.Error()})
	})
}
