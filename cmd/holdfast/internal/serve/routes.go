package serve

import (
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operator"
)

// endpoint answers a request. An error becomes a problem, if no line of a stream has been sent.
type endpoint func(w http.ResponseWriter, r *http.Request) error

// route is one row of the table of all paths. needs is the right on the lock that the path names by {name}, {handle} or
// {hold}, or on LEDGER/KEY by {key} or {run}: it is asked for here, so that no endpoint forgets it.
type route struct {
	method, path string
	needs        right
	answer       endpoint
}

// routes are all paths of the API. A test compares them with docs/openapi.yaml.
func (s *Server) routes() []route {
	const key = "/v1/ledgers/{ledger}/keys/{key}"
	return []route{
		{http.MethodPost, "/v1/locks/{name}/hold", rightHold, s.hold},
		{http.MethodPost, "/v1/holds/{hold}/check", rightHold, s.checkHold},
		{http.MethodPost, "/v1/holds/{hold}/release", rightHold, s.releaseHold},
		{http.MethodPost, "/v1/holds/{hold}/detach", rightHold, s.detachHold},
		{http.MethodPost, "/v1/locks/{name}/acquire", rightHold, s.acquire},
		{http.MethodPost, "/v1/locks/{name}/try", rightHold, s.try},
		{http.MethodPost, "/v1/handles/{handle}/renew", rightHold, s.renewHandle},
		{http.MethodPost, "/v1/handles/{handle}/release", rightHold, s.releaseHandle},
		{http.MethodGet, "/v1/locks", rightNone, s.listLocks},
		{http.MethodGet, "/v1/locks/{name}", rightSee, s.showLock},
		{http.MethodGet, "/v1/locks/{name}/watch", rightSee, s.watchLock},
		{http.MethodPost, "/v1/locks/{name}/break", rightBreak, s.breakLock},
		{http.MethodPost, "/v1/locks/{name}/request-release", rightHold, s.requestRelease},
		{http.MethodPost, "/v1/locks/{name}/explain", rightSee, s.explainLock},
		{http.MethodPost, "/v1/elections/{name}/campaign", rightHold, s.campaign},
		{http.MethodGet, "/v1/elections/{name}/leader", rightSee, s.showLeader},
		{http.MethodGet, "/v1/elections/{name}/observe", rightSee, s.observe},
		{http.MethodGet, "/v1/ledgers/{ledger}/keys", rightNone, s.listRuns},
		{http.MethodGet, key, rightSee, s.showRuns},
		{http.MethodPost, key + "/begin", rightHold, s.beginRun},
		{http.MethodPost, key + "/retry", rightBreak, s.retryKey},
		{http.MethodPost, key + "/forget", rightBreak, s.forgetKey},
		{http.MethodPost, "/v1/runs/{run}/beat", rightHold, s.beatRun},
		{http.MethodPost, "/v1/runs/{run}/succeed", rightHold, s.succeedRun},
		{http.MethodPost, "/v1/runs/{run}/fail", rightHold, s.failRun},
		{http.MethodGet, "/v1/store", rightNone, s.showStore},
		{http.MethodGet, "/v1/doctor", rightSeeAll, s.examineStore},
		{http.MethodGet, "/healthz", rightNone, s.showHealth},
		{http.MethodGet, "/readyz", rightNone, s.showReadiness},
		{http.MethodGet, "/metrics", rightSeeAll, s.showMetrics},
	}
}

// newHandler answers all requests: those of the API by its routes, and all others by the page.
func (s *Server) newHandler() http.Handler {
	byPath := map[string]map[string]route{}
	for _, r := range s.routes() {
		if byPath[r.path] == nil {
			byPath[r.path] = map[string]route{}
		}
		byPath[r.path][r.method] = r
	}
	mux := http.NewServeMux()
	for path, methods := range byPath {
		var allowed []string
		for m := range methods {
			allowed = append(allowed, m)
		}
		slices.Sort(allowed)
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			row, ok := methods[r.Method]
			if !ok && r.Method == http.MethodHead {
				row, ok = methods[http.MethodGet]
			}
			if !ok {
				w.Header().Set("Allow", strings.Join(allowed, ", "))
				s.writeError(w, r, newProblem(codeMethodNotAllowed, "use %s", strings.Join(allowed, " or ")))
				return
			}
			err := s.allow(r, row)
			if err == nil {
				err = row.answer(w, r)
			}
			if err != nil {
				s.writeError(w, r, err)
			}
		})
	}
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		s.writeError(w, r, newProblem(codeNotFound, "there is no such path in this API; docs/openapi.yaml has all"))
	})
	page := s.config.Page
	if page == nil {
		page = http.HandlerFunc(writeGreeting)
	}
	mux.Handle("/", page)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(responseTimeout))
		s.counts.requests.Add(1)
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		admitted, err := s.admit(r)
		if err != nil {
			s.counts.refused.Add(1)
			s.writeError(w, r, err)
			return
		}
		if !isProbe(r) {
			defer connectionOf(r).use()()
			if err := takeBody(w, admitted); err != nil {
				s.writeError(w, admitted, err)
				return
			}
		}
		mux.ServeHTTP(w, admitted)
	})
}

// allow returns an error if the caller of a request does not have the right that its route asks for.
func (s *Server) allow(r *http.Request, row route) error {
	a := admissionOf(r)
	if a == nil { // of a probe
		return s.require(&caller{}, row.needs, "")
	}
	var err error
	if a.needs = row.needs; a.needs != rightSeeAll {
		a.name, a.named, err = s.subjectOf(r)
	}
	if err != nil {
		return err
	}
	if _, err = s.checkRight(r); err == nil {
		return nil
	}
	switch action := operator.Action(path.Base(row.path)); action {
	case operator.Break, operator.RequestRelease:
		s.AuditRefused(r, operator.Entry{Action: action, Lock: a.name})
	case operator.Retry, operator.Forget:
		ledger, key, _ := keyOf(r)
		s.AuditRefused(r, operator.Entry{Action: action, Ledger: ledger, Key: key})
	}
	return err
}

// subjectOf is the name on which the caller of a request needs a right. A hold and a run are found by their caller
// alone.
func (s *Server) subjectOf(r *http.Request) (name string, named bool, err error) {
	switch {
	case r.PathValue("name") != "":
		return nameOf(r, "name"), true, nil
	case r.PathValue("key") != "":
		_, _, name = keyOf(r)
	case r.PathValue("handle") != "":
		h, err := decodeHandle(r.PathValue("handle"))
		admissionOf(r).also = h.alsoNames()
		return h.Name, true, err
	case r.PathValue("hold") != "":
		h, err := s.holds.find(r)
		if err != nil {
			return "", true, err
		}
		name = h.name
		admissionOf(r).also = h.also
	case r.PathValue("run") != "":
		o, err := s.runs.find(r)
		if err != nil {
			return "", true, err
		}
		name = o.ledger + "/" + o.run.Key()
	default:
		return "", false, nil
	}
	return name, true, nil
}

// writeGreeting answers in place of the page.
func writeGreeting(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("holdfast serve: the API is below /v1/, see docs/serve.md\n"))
}
