package serve

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// endpoint answers a request. An error becomes a problem, if no line of a stream has been sent.
type endpoint func(w http.ResponseWriter, r *http.Request) error

// route is one row of the table of all paths.
type route struct {
	method, path string
	answer       endpoint
}

// routes are all paths of the API. A test compares them with docs/openapi.yaml.
func (s *Server) routes() []route {
	const key = "/v1/ledgers/{ledger}/keys/{key}"
	return []route{
		{http.MethodPost, "/v1/locks/{name}/hold", s.hold},
		{http.MethodPost, "/v1/holds/{hold}/check", s.checkHold},
		{http.MethodPost, "/v1/holds/{hold}/release", s.releaseHold},
		{http.MethodPost, "/v1/holds/{hold}/detach", s.detachHold},
		{http.MethodPost, "/v1/locks/{name}/acquire", s.acquire},
		{http.MethodPost, "/v1/locks/{name}/try", s.try},
		{http.MethodPost, "/v1/handles/{handle}/renew", s.renewHandle},
		{http.MethodPost, "/v1/handles/{handle}/release", s.releaseHandle},
		{http.MethodGet, "/v1/locks", s.listLocks},
		{http.MethodGet, "/v1/locks/{name}", s.showLock},
		{http.MethodGet, "/v1/locks/{name}/watch", s.watchLock},
		{http.MethodPost, "/v1/locks/{name}/break", s.breakLock},
		{http.MethodPost, "/v1/locks/{name}/request-release", s.requestRelease},
		{http.MethodPost, "/v1/locks/{name}/explain", s.explainLock},
		{http.MethodPost, "/v1/elections/{name}/campaign", s.campaign},
		{http.MethodGet, "/v1/elections/{name}/leader", s.showLeader},
		{http.MethodGet, "/v1/elections/{name}/observe", s.observe},
		{http.MethodGet, "/v1/ledgers/{ledger}/keys", s.listRuns},
		{http.MethodGet, key, s.showRuns},
		{http.MethodPost, key + "/begin", s.beginRun},
		{http.MethodPost, key + "/retry", s.retryKey},
		{http.MethodPost, key + "/forget", s.forgetKey},
		{http.MethodPost, "/v1/runs/{run}/beat", s.beatRun},
		{http.MethodPost, "/v1/runs/{run}/succeed", s.succeedRun},
		{http.MethodPost, "/v1/runs/{run}/fail", s.failRun},
		{http.MethodGet, "/v1/store", s.showStore},
		{http.MethodGet, "/v1/doctor", s.examineStore},
		{http.MethodGet, "/healthz", s.showHealth},
		{http.MethodGet, "/readyz", s.showReadiness},
		{http.MethodGet, "/metrics", s.showMetrics},
	}
}

// newHandler answers all requests: those of the API by its routes, and all others by the page.
func (s *Server) newHandler() http.Handler {
	byPath := map[string]map[string]endpoint{}
	for _, r := range s.routes() {
		if byPath[r.path] == nil {
			byPath[r.path] = map[string]endpoint{}
		}
		byPath[r.path][r.method] = r.answer
	}
	mux := http.NewServeMux()
	for path, methods := range byPath {
		var allowed []string
		for m := range methods {
			allowed = append(allowed, m)
		}
		slices.Sort(allowed)
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			answer := methods[r.Method]
			if answer == nil && r.Method == http.MethodHead {
				answer = methods[http.MethodGet]
			}
			if answer == nil {
				w.Header().Set("Allow", strings.Join(allowed, ", "))
				s.writeError(w, newProblem(codeMethodNotAllowed, "use %s", strings.Join(allowed, " or ")))
				return
			}
			if err := answer(w, r); err != nil {
				s.writeError(w, err)
			}
		})
	}
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, _ *http.Request) {
		s.writeError(w, newProblem(codeNotFound, "there is no such path in this API; docs/openapi.yaml has all"))
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
			s.writeError(w, err)
			return
		}
		mux.ServeHTTP(w, admitted)
	})
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
