package kubernetestest

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// Model is a server in this process that does with leases what an API server does, as far as a store can tell: it
// compares uids and resource versions, makes objects that a PUT does not find, pages listings, and sends the changes to
// watches. The tests that decide whether a store is right run on both, and so they compare the two.
type Model struct {
	*httptest.Server

	mu        sync.Mutex
	revision  int64
	objects   map[string]object // by name
	changes   []change          // of the objects, in their order
	compacted int64             // the oldest revision at which a watch can begin
	behind    *cache            // what the watches show; nil if they show all
	watching  int               // how many watches there are
	changed   chan struct{}     // closed at the next change
	ended     chan struct{}     // closed when the running watches are to end
	requests  map[string]int
}

// cache is what there was at a revision.
type cache struct {
	revision int64
	objects  map[string]object
}

// object is a lease as JSON has it.
type object = map[string]any

type change struct {
	revision int64
	kind     string
	object   object
}

// StartModel starts a model. Stop ends it.
func StartModel() *Model {
	m := &Model{revision: 1, objects: map[string]object{}, changed: make(chan struct{}),
		ended: make(chan struct{}), requests: map[string]int{}}
	m.Server = httptest.NewServer(http.HandlerFunc(m.serve))
	return m
}

// Stop ends the model and its connections.
func (m *Model) Stop() {
	m.Server.CloseClientConnections()
	m.Server.Close()
}

// Address is the address of the server.
func (m *Model) Address() string { return m.Server.URL }

// Client makes a client with a token, as that of a Cluster.
func (m *Model) Client(token string, via *servertest.Net, wrap func(http.RoundTripper) http.RoundTripper,
) (client *http.Client, stop func()) {
	return newClient(nil, token, via, wrap)
}

// Compact makes all that was too old for a watch to begin there, or for a listing to go on. Running watches miss
// nothing.
func (m *Model) Compact() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.compacted = m.revision
}

// CountRequests returns how many requests there were, by verb, since the last call.
func (m *Model) CountRequests() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts := m.requests
	m.requests = map[string]int{}
	return counts
}

// CountWatches returns how many watches are running.
func (m *Model) CountWatches() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.watching
}

// EndWatches ends all watches that are running, as a server does after a while.
func (m *Model) EndWatches() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.ended)
	m.ended = make(chan struct{})
}

// DelayWatches makes all watches show nothing of what comes now, as when a server's cache is behind, until CatchUp.
func (m *Model) DelayWatches() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.behind = &cache{m.revision, maps.Clone(m.objects)}
}

// CatchUp makes all watches show everything.
func (m *Model) CatchUp() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.behind = nil
	m.signalLocked()
}

const leasesPath = "/apis/coordination.k8s.io/v1/namespaces/"

// refusal is an error that the server reports.
type refusal struct {
	code         int
	reason, kind string
	message      string
}

func (r *refusal) send(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(r.code)
	_ = json.NewEncoder(w).Encode(r.status())
}

func (r *refusal) status() object {
	return object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": r.message, "reason": r.reason,
		"details": object{"kind": r.kind}, "code": r.code}
}

func (m *Model) serve(w http.ResponseWriter, r *http.Request) {
	rest, ok := strings.CutPrefix(r.URL.Path, leasesPath)
	parts := strings.Split(rest, "/")
	if !ok || len(parts) < 2 || len(parts) > 3 || parts[1] != "leases" {
		(&refusal{http.StatusNotFound, "NotFound", "", "the server could not find the requested resource"}).send(w)
		return
	}
	name := ""
	if len(parts) == 3 {
		name = parts[2]
	}
	q := r.URL.Query()
	verb := map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update",
		http.MethodDelete: "delete"}[r.Method]
	switch {
	case q.Get("watch") != "":
		verb = "watch"
	case verb == "get" && name == "":
		verb = "list"
	}
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	verbs, known := strings.CutPrefix(token, "may.")
	switch {
	case token != AllowAll && !known:
		(&refusal{http.StatusUnauthorized, "Unauthorized", "", "Unauthorized"}).send(w)
		return
	case token != AllowAll && (parts[0] != Namespace || !slices.Contains(strings.Split(verbs, "."), verb)):
		(&refusal{http.StatusForbidden, "Forbidden", "leases", "leases.coordination.k8s.io is forbidden: cannot " + verb}).
			send(w)
		return
	}
	m.mu.Lock()
	m.requests[verb]++
	m.mu.Unlock()
	var body object
	if verb == "create" || verb == "update" || verb == "delete" {
		if err := json.NewDecoder(io.LimitReader(r.Body, 3<<20)).Decode(&body); err != nil && err != io.EOF {
			(&refusal{http.StatusBadRequest, "BadRequest", "", err.Error()}).send(w)
			return
		}
	}
	if verb == "watch" {
		m.watch(w, r)
		return
	}
	result, refused := m.do(verb, parts[0], name, body, q.Get("limit"), q.Get("continue"), q.Get("labelSelector"))
	if refused != nil {
		refused.send(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if verb == "create" {
		w.WriteHeader(http.StatusCreated)
	}
	_ = json.NewEncoder(w).Encode(result)
}

// do is one request.
func (m *Model) do(verb, namespace, name string, body object, limit, token, labels string) (object, *refusal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if namespace != Namespace && verb == "create" {
		return nil, &refusal{http.StatusNotFound, "NotFound", "namespaces", "namespaces \"" + namespace + "\" not found"}
	}
	if namespace != Namespace && verb == "list" {
		return object{"kind": "LeaseList", "metadata": object{}, "items": []any{}}, nil
	}
	if verb == "create" {
		name = text(body, "metadata", "name")
	}
	now, exists := m.objects[name]
	exists = exists && namespace == Namespace
	absent := &refusal{http.StatusNotFound, "NotFound", "leases", "leases.coordination.k8s.io \"" + name + "\" not found"}
	conflict := &refusal{http.StatusConflict, "Conflict", "leases", "the object has been modified"}
	uid, version := text(body, "metadata", "uid"), text(body, "metadata", "resourceVersion")
	switch verb {
	case "list":
		return m.list(limit, token, labels)
	case "get":
		if !exists {
			return nil, absent
		}
		return now, nil
	case "create":
		switch {
		case version != "":
			return nil, &refusal{http.StatusInternalServerError, "", "", "resourceVersion should not be set on objects " +
				"to be created"}
		case exists:
			return nil, &refusal{http.StatusConflict, "AlreadyExists", "leases", "the object already exists"}
		}
		return m.store(name, body, "ADDED")
	case "update":
		switch {
		case !exists && uid != "", exists && uid != "" && uid != text(now, "metadata", "uid"):
			return nil, conflict
		case exists && version == "":
			return nil, &refusal{http.StatusUnprocessableEntity, "Invalid", "leases", "metadata.resourceVersion: must be " +
				"specified for an update"}
		case exists && version != text(now, "metadata", "resourceVersion"):
			return nil, conflict
		case !exists: // a PUT makes an object, whatever version it names
			return m.store(name, body, "ADDED")
		}
		body["metadata"].(object)["uid"] = text(now, "metadata", "uid")
		return m.store(name, body, "MODIFIED")
	default: // delete
		uid, version = text(body, "preconditions", "uid"), text(body, "preconditions", "resourceVersion")
		switch {
		case !exists:
			return nil, absent
		case uid != "" && uid != text(now, "metadata", "uid"),
			version != "" && version != text(now, "metadata", "resourceVersion"):
			return nil, conflict
		}
		m.revision++
		delete(m.objects, name)
		gone := maps.Clone(now)
		gone["metadata"] = maps.Clone(now["metadata"].(object))
		gone["metadata"].(object)["resourceVersion"] = strconv.FormatInt(m.revision, 10)
		m.noteLocked("DELETED", gone)
		return object{"kind": "Status", "status": "Success"}, nil
	}
}

// text is a text in an object.
func text(o object, path ...string) string {
	var v any = o
	for _, p := range path {
		in, ok := v.(object)
		if !ok {
			return ""
		}
		v = in[p]
	}
	s, _ := v.(string)
	return s
}

var subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// store stores an object that may replace another one.
func (m *Model) store(name string, o object, kind string) (object, *refusal) {
	meta, _ := o["metadata"].(object)
	size := 0
	annotations, _ := meta["annotations"].(object)
	for k, v := range annotations {
		size += len(k) + len(v.(string))
	}
	invalid := func(why string) (object, *refusal) {
		return nil, &refusal{http.StatusUnprocessableEntity, "Invalid", "leases", "Lease \"" + name + "\" is invalid: " + why}
	}
	spec, _ := o["spec"].(object)
	seconds, hasSeconds := spec["leaseDurationSeconds"].(float64)
	switch {
	case len(name) > 253 || !subdomain.MatchString(name):
		return invalid("metadata.name: a lowercase RFC 1123 subdomain")
	case size > 256<<10:
		return invalid("metadata.annotations: Too long: may not be more than 262144 bytes")
	case hasSeconds && seconds < 1:
		return invalid("spec.leaseDurationSeconds: must be greater than 0")
	}
	m.revision++
	meta["resourceVersion"] = strconv.FormatInt(m.revision, 10)
	meta["uid"] = cmp.Or(text(o, "metadata", "uid"), rand.Text())
	m.objects[name] = o
	m.noteLocked(kind, o)
	return o, nil
}

func (m *Model) noteLocked(kind string, o object) {
	m.changes = append(m.changes, change{m.revision, kind, o})
	m.signalLocked()
}

func (m *Model) signalLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// list returns one page. The token of a page is the revision of the listing and the last name.
func (m *Model) list(limit, token, labels string) (object, *refusal) {
	after := ""
	if token != "" {
		revision, last, _ := strings.Cut(token, " ")
		n, _ := strconv.ParseInt(revision, 10, 64)
		if n < m.compacted {
			return nil, &refusal{http.StatusGone, "Expired", "", "The provided continue parameter is too old"}
		}
		after = last
	}
	size, _ := strconv.Atoi(limit)
	items, next := []object{}, ""
	for _, name := range slices.Sorted(maps.Keys(m.objects)) {
		o := m.objects[name]
		if name <= after || !matches(o, labels) {
			continue
		}
		if size > 0 && len(items) == size {
			next = fmt.Sprintf("%d %s", m.revision, text(items[size-1], "metadata", "name"))
			break
		}
		items = append(items, o)
	}
	return object{"kind": "LeaseList", "metadata": object{"continue": next}, "items": items}, nil
}

// matches reports whether an object has these labels.
func matches(o object, labels string) bool {
	for _, l := range strings.Split(labels, ",") {
		k, v, _ := strings.Cut(l, "=")
		if k != "" && text(o, "metadata", "labels", k) != v {
			return false
		}
	}
	return true
}

// watch sends the changes of one object.
func (m *Model) watch(w http.ResponseWriter, r *http.Request) {
	name, _ := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	seen, _ := strconv.ParseInt(r.URL.Query().Get("resourceVersion"), 10, 64)
	lines := json.NewEncoder(w)
	w.Header().Set("Content-Type", "application/json")
	m.mu.Lock()
	m.watching++
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.watching--
	}()
	ended, has := m.ended, m.cacheLocked()
	now, exists := has.objects[name]
	switch {
	case seen == 0:
		seen = has.revision
	case seen < m.compacted:
		m.mu.Unlock()
		s := (&refusal{http.StatusGone, "Expired", "", "too old resource version"}).status()
		_ = lines.Encode(object{"type": "ERROR", "object": s})
		return
	default:
		exists = false
	}
	m.mu.Unlock()
	if exists {
		_ = lines.Encode(object{"type": "ADDED", "object": now})
	}
	for {
		_ = http.NewResponseController(w).Flush()
		m.mu.Lock()
		var news []change
		has := m.cacheLocked()
		for _, c := range m.changes {
			if c.revision > seen && c.revision <= has.revision && text(c.object, "metadata", "name") == name {
				news = append(news, c)
			}
		}
		seen = max(seen, has.revision)
		next := m.changed
		m.mu.Unlock()
		for _, c := range news {
			_ = lines.Encode(object{"type": c.kind, "object": c.object})
		}
		if len(news) > 0 {
			continue
		}
		select {
		case <-next:
		case <-ended:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// cacheLocked is what watches show.
func (m *Model) cacheLocked() cache {
	if m.behind != nil {
		return *m.behind
	}
	return cache{m.revision, m.objects}
}
