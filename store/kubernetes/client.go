package kubernetes

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/httpclient"
	"github.com/holdfast-go/holdfast/engine/record"
)

// The few requests that a store sends, in JSON, as the API's conventions document them. The project's own client
// library is not used: it would make each program with this package larger by 20 MB. No write is sent again here: the
// second would be refused because of the effect of the first.

const (
	// requestTimeout is how long one request may take. After that another one finds out what became of it.
	requestTimeout = 5 * time.Second
	// maxHostSkew is how far the clocks of the API servers of one cluster may be apart. Each reply has the Date of the
	// one that answered. etcd complains when the clocks of its members, which are often the same machines, are further
	// apart.
	maxHostSkew = time.Second
	// pageSize is how many objects are listed at a time.
	pageSize = 250
)

// client sends the requests about the leases of one namespace, and learns the servers' clock from the replies.
type client struct {
	http      *httpclient.Client
	server    string // such as https://10.0.0.1:6443, without a slash at its end
	namespace string
	clock     *record.ServerClock
	life      *driverutil.Lifetime
	watches   *watches
	session   string // names the client in records: see record.Watcher
	onClose   func()
}

// lease is an object of coordination.k8s.io/v1.
type lease struct {
	APIVersion string    `json:"apiVersion,omitempty"`
	Kind       string    `json:"kind,omitempty"`
	Meta       metadata  `json:"metadata"`
	Spec       leaseSpec `json:"spec"`
}

// metadata is what is kept of an object's metadata when it is replaced, so that nothing is lost that others have added.
type metadata struct {
	Name              string            `json:"name,omitempty"`
	Namespace         string            `json:"namespace,omitempty"`
	UID               string            `json:"uid,omitempty"`
	ResourceVersion   string            `json:"resourceVersion,omitempty"`
	DeletionTimestamp string            `json:"deletionTimestamp,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
	OwnerReferences   json.RawMessage   `json:"ownerReferences,omitempty"`
	Finalizers        []string          `json:"finalizers,omitempty"`
}

// leaseSpec is what a lease says to people and to foreign clients.
type leaseSpec struct {
	Holder      *string `json:"holderIdentity,omitempty"`
	Seconds     *int32  `json:"leaseDurationSeconds,omitempty"`
	AcquireTime *string `json:"acquireTime,omitempty"`
	RenewTime   *string `json:"renewTime,omitempty"`
	Transitions *int32  `json:"leaseTransitions,omitempty"`
	// Of coordinated leader election, in which a controller of the cluster chooses the holder.
	Strategy  *string `json:"strategy,omitempty"`
	Preferred *string `json:"preferredHolder,omitempty"`
}

// version identifies one state of one object. The uid tells it from a later object of the same name: a server makes an
// object that a PUT does not find.
func (l *lease) version() string { return l.Meta.UID + " " + l.Meta.ResourceVersion }

// leasesURL is the address of the leases of the namespace, or of one.
func (c *client) leasesURL(name string, q url.Values) string {
	u := c.server + "/apis/coordination.k8s.io/v1/namespaces/" + url.PathEscape(c.namespace) + "/leases"
	if name != "" {
		u += "/" + url.PathEscape(name)
	}
	if len(q) > 0 {
		u += "?" + q.Encode()
	}
	return u
}

// open sends a request, and returns the reply if it says that the request was done. The caller closes its body.
func (c *client) open(ctx context.Context, verb, method, address string, body any) (*http.Response, error) {
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(ctx, method, address, content)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "holdfast") // which the server keeps with an object's fields, and in its audit log
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	reply, err := c.http.Stream(r)
	if err != nil {
		return nil, c.explainError(err)
	}
	if reply.StatusCode < 300 {
		return reply, nil
	}
	defer reply.Body.Close()
	return nil, c.explainRefusal(verb, reply)
}

// callServer sends a request, bounded by requestTimeout and by the life of the store, and decodes the reply into
// result. An error without a reply leaves open what became of a write: the engine then reads the object.
func (c *client) callServer(ctx context.Context, verb, method, address string, body, result any) error {
	return c.life.Call(ctx, requestTimeout, "the API server", func(ctx context.Context) error {
		reply, err := c.open(ctx, verb, method, address, body)
		if err != nil {
			return err
		}
		defer reply.Body.Close()
		data, err := io.ReadAll(reply.Body) // to its end: the connection is used again
		if err != nil {
			return err
		}
		return decodeObject(data, result)
	}, func(err error) error { return err })
}

// decodeObject decodes a reply into result, unless that is nil. All that an API server answers is an object of some
// kind.
func decodeObject(data []byte, result any) error {
	var o struct {
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(data, &o); err != nil {
		return err
	}
	if o.Kind == "" {
		return errors.New("the reply is not an object of Kubernetes")
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(data, result)
}

// isOwnReply reports whether a reply can come from an API server, some of whose refusals are plain text.
func isOwnReply(reply *http.Response) bool {
	return reply.StatusCode >= 300 || strings.HasPrefix(reply.Header.Get("Content-Type"), "application/json")
}

// read is send for a request that changes nothing. It is sent again at once if the server is in trouble or the
// connection breaks. A request that got no answer for a second is not sent again.
func (c *client) read(ctx context.Context, verb, address string, result any) error {
	const maxTries = 3
	for tries, from := 1, c.clock.Clock.Now(); ; tries++ {
		err := c.callServer(ctx, verb, http.MethodGet, address, nil, result)
		if err == nil || tries == maxTries || ctx.Err() != nil || c.clock.Clock.Since(from) > time.Second ||
			errors.Is(err, errNotFound) || errors.Is(err, errExpired) || errors.Is(err, errBusy) || errors.Is(err, record.ErrUnsent) ||
			driverutil.IsFinal(err) {
			return err
		}
	}
}

// get reads an object as it is now. If there is none, the error is errNotFound.
func (c *client) get(ctx context.Context, name string) (*lease, error) {
	l := new(lease)
	return l, c.read(ctx, "get", c.leasesURL(name, nil), l)
}

// write makes an object, or replaces the one with its uid and resource version. If there is another one, the error is
// record.ErrConflict.
func (c *client) write(ctx context.Context, l *lease) (*lease, error) {
	l.APIVersion, l.Kind, l.Meta.Namespace = "coordination.k8s.io/v1", "Lease", c.namespace
	method, verb, address := http.MethodPut, "update", c.leasesURL(l.Meta.Name, nil)
	if l.Meta.ResourceVersion == "" {
		method, verb, address = http.MethodPost, "create", c.leasesURL("", nil)
	}
	l.Meta.Annotations[writeAnnotation] = rand.Text()
	now := new(lease)
	err := c.callServer(ctx, verb, method, address, l, now)
	switch {
	case errors.Is(err, errNotFound):
		err = record.ErrConflict
	case err != nil:
	case now.Kind != l.Kind || now.Meta.Name != l.Meta.Name || now.Meta.UID == "" || now.Meta.ResourceVersion == "" ||
		now.Meta.Annotations[writeAnnotation] != l.Meta.Annotations[writeAnnotation]:
		err = fmt.Errorf("the reply to a write of the lease %s does not show what was written", l.Meta.Name)
	case now.Meta.DeletionTimestamp != "":
		err = fmt.Errorf("the lease %s is being deleted", l.Meta.Name) // or is gone: a read finds out
	}
	return now, err
}

// writeAnnotation has a text that no other write has. A server that finds an object as it was does not give it another
// resource version, and the reply shows whether it is about this write.
const writeAnnotation = "holdfast/write"

// remove removes an object if it has that uid and resource version. If there is none, the error is errNotFound.
func (c *client) remove(ctx context.Context, name, uid, version string) error {
	return c.callServer(ctx, "delete", http.MethodDelete, c.leasesURL(name, nil), map[string]any{
		"apiVersion": "v1", "kind": "DeleteOptions",
		"preconditions": map[string]string{"uid": uid, "resourceVersion": version}}, nil)
}

// leasePage is one page of a listing.
type leasePage struct {
	Meta struct {
		Continue string `json:"continue"`
	} `json:"metadata"`
	Items []lease `json:"items"`
}

// list returns one page of the objects with these labels. If the token of the page is too old, the error is errExpired.
func (c *client) list(ctx context.Context, labels, token string) (leasePage, error) {
	q := url.Values{"limit": {fmt.Sprint(pageSize)}}
	if labels != "" {
		q.Set("labelSelector", labels)
	}
	if token != "" {
		q.Set("continue", token)
	}
	var page leasePage
	return page, c.read(ctx, "list", c.leasesURL("", q), &page)
}

// shownChange is a change of an object, as a watch shows it.
type shownChange struct {
	version
	object *lease
}

// watch calls changed with each change of an object after the resource version from. With "0" the first change is the
// object as the server has it, which may be old, if there is one. subscribed is called when no change will be missed
// any more. The error says why the watch has ended; if from is too old, it is errExpired. A watch that has begun ends
// when the server ends it, which is after half an hour or more, or with ctx.
func (c *client) watch(
	ctx context.Context, name, from string, subscribed func() error, changed func(shownChange),
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	tooLong := time.AfterFunc(requestTimeout, func() { cancel(errSilent) })
	defer tooLong.Stop()
	q := url.Values{"watch": {"true"}, "fieldSelector": {"metadata.name=" + name}, "resourceVersion": {from}}
	reply, err := c.open(ctx, "watch", http.MethodGet, c.leasesURL("", q), nil)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	tooLong.Stop()
	if err := subscribed(); err != nil {
		return err
	}
	lines := json.NewDecoder(bufio.NewReader(reply.Body))
	for {
		var e struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := lines.Decode(&e); err != nil {
			return err
		}
		switch e.Type {
		case "ADDED", "MODIFIED", "DELETED":
		case "ERROR":
			var s status
			if err := json.Unmarshal(e.Object, &s); err != nil {
				return err
			}
			if s.Code == http.StatusGone || s.Reason == "Expired" {
				return errExpired
			}
			return fmt.Errorf("the server ends the watch: %s", s.Message)
		default:
			continue
		}
		var l lease
		if err := json.Unmarshal(e.Object, &l); err != nil {
			return err
		}
		revision, err := parseRevision(l.Meta.ResourceVersion)
		if err != nil {
			return err
		}
		// An object that was removed has the revision of its removal.
		changed(shownChange{version{revision, e.Type != "DELETED"}, &l})
	}
}

// share returns a client that can be closed on its own.
func (c *client) share() *client {
	s := *c
	s.life, s.watches, s.session, s.onClose = driverutil.NewLifetime(), newWatches(), record.NewSession(), func() {}
	return &s
}

// close ends the calls that are running. It does not close an HTTP client of the caller's.
func (c *client) close() {
	if c.life.End() {
		c.life.Wait()
		c.onClose()
	}
}
