package etcd

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/sequence"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// watchHub is one watch stream for everything that a store watches. A watch needs no goroutine of its own: ten thousand
// watches need two in all. The hub does not ask for events of past revisions. When a stream breaks, it creates all
// watches again on the next one, and notifies all their owners.
//
// To resume a watch at the revision where it broke would be the usual way, but that revision may have been compacted
// meanwhile, and then the watch is canceled ("KV API guarantees" in etcd's documentation: events are kept as long as
// the history is). The owners read the lock again in any case, so a replay would add nothing.
type watchHub struct {
	nodes      *nodeStore           // knows the keys of locks
	life       *driverutil.Lifetime // that of the store, which waits for the hub's goroutine
	client     pb.WatchClient
	renewLogin func(context.Context) // renews a login that has expired

	mu            sync.Mutex
	running       bool
	lastID        int64 // ID of the newest watch; no ID is used twice
	watches       map[int64]*watch
	requests      []*pb.WatchRequest // to be sent on the present stream
	requestQueued chan struct{}      // buffered; wakes sendRequests
	streaming     bool               // there is a stream
	confirmedUpTo int64              // the revision up to which the stream has brought all events, as far as is known
	progress      chan struct{}      // closed when confirmedUpTo or streaming changes
}

// watch is one subscription. Its fields do not change, except id and knownUpTo. There is one for each claim that is
// held, so it shares its strings with that, and has 64 bytes, which is one of the sizes in which Go allocates.
type watch struct {
	hub     *watchHub
	id      int64
	lock    string // empty: key is a whole key
	key     string // of a node of the lock, or one of sequence.WatchRemovals and WatchChanges
	changed func()
	// the revision up to which the owner knows all: that of its last snapshot; 0 if there is none, or if a stream broke
	// since or the server has canceled the watch; isLive; guarded by the hub's mutex
	knownUpTo int64
}

// isLive is the knownUpTo of a watch of which the present stream reports what happens.
const isLive = math.MaxInt64

func newWatchHub(t *nodeStore, client pb.WatchClient) *watchHub {
	return &watchHub{
		nodes: t, life: t.life, client: client, renewLogin: t.renewLogin,
		watches: map[int64]*watch{}, requestQueued: make(chan struct{}, 1), progress: make(chan struct{}),
	}
}

// add begins a watch. It does no I/O.
func (h *watchHub) add(w *watch) *watch {
	h.mu.Lock()
	defer h.mu.Unlock()
	w.hub = h
	if h.life.Err() != nil {
		return w
	}
	h.lastID++
	w.id = h.lastID
	h.watches[w.id] = w
	// The stream is opened with the first watch, and creates all watches that exist by then.
	if !h.running {
		h.running = true
		h.life.Go(h.run)
	} else {
		h.queueRequest(w.createRequest())
	}
	return w
}

// Stop ends the watch.
func (w *watch) Stop() {
	h := w.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watches[w.id] == w {
		delete(h.watches, w.id)
		cancel := &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: w.id}}
		h.queueRequest(&pb.WatchRequest{RequestUnion: cancel})
	}
}

// IsLive reports whether the present stream reports what happens.
func (w *watch) IsLive() bool {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	return w.knownUpTo == isLive
}

var errStreamBroken = errors.New("the connection for watches to the etcd server broke")

// confirm waits until the present stream has brought all events up to a revision. A stream that has stopped without
// notice is found out by that: its server does not answer. Servers before 3.5.8 and 3.4.25 may answer shortly before
// they send the last events, which then come a moment later. While a watch is not caught up, servers give no answer at
// all.
func (h *watchHub) confirm(ctx context.Context, revision int64) error {
	retry := time.NewTicker(100 * time.Millisecond)
	defer retry.Stop()
	for ask := true; ; {
		h.mu.Lock()
		streaming, reached, progress := h.streaming, h.confirmedUpTo >= revision, h.progress
		if streaming && !reached && ask {
			h.queueRequest(&pb.WatchRequest{
				RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}},
			})
		}
		h.mu.Unlock()
		switch {
		case !streaming:
			return errStreamBroken
		case reached:
			return nil
		}
		select {
		case <-progress: // if that is not enough, the member is behind, and is asked again after a while
			ask = false
		case <-retry.C:
			ask = true
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// noteProgressLocked wakes those that wait for a confirmation. It is called with mu held.
func (h *watchHub) noteProgressLocked(streaming bool, upTo int64) {
	h.streaming, h.confirmedUpTo = streaming, upTo
	close(h.progress)
	h.progress = make(chan struct{})
}

// createRequest is the request that begins the watch on a stream.
func (w *watch) createRequest() *pb.WatchRequest {
	r := &pb.WatchCreateRequest{WatchId: w.id}
	switch {
	case w.lock == "":
		r.Key = []byte(w.key)
	case w.key == sequence.WatchRemovals || w.key == sequence.WatchChanges: // the first without the keys that are put
		from, to := w.hub.nodes.lockRange(w.lock)
		r.Key, r.RangeEnd = []byte(from), []byte(to)
		if w.key == sequence.WatchRemovals {
			r.Filters = []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}
		}
	default:
		r.Key = []byte(w.hub.nodes.lockDir(w.lock) + w.key)
	}
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}}
}

func (h *watchHub) queueRequest(r *pb.WatchRequest) {
	h.requests = append(h.requests, r)
	select {
	case h.requestQueued <- struct{}{}:
	default:
	}
}

// run opens one stream after the other until the store is closed.
func (h *watchHub) run() {
	for fails := 0; h.life.Err() == nil; fails++ {
		if h.runStream() {
			fails = 0
		}
		timer := time.NewTimer(rand.N(20 * time.Millisecond << min(fails, 6)))
		select {
		case <-timer.C:
		case <-h.life.Done():
		}
		timer.Stop()
	}
}

// runStream creates all watches on one stream and handles its responses until the stream breaks, or takes no more
// watches. It reports whether the server has answered on it. A member without a leader breaks the stream, so that no
// watch stays with a member that gets no events.
func (h *watchHub) runStream() (answered bool) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(h.life))
	defer cancel()
	stream, err := h.client.Watch(ctx, grpc.MaxCallRecvMsgSize(math.MaxInt32))
	if err != nil {
		return false
	}
	// What was queued for the last stream is dropped. Every watch that still exists is created here, and the others
	// need no cancellation on this stream.
	h.mu.Lock()
	h.requests = nil
	for _, w := range h.watches {
		h.queueRequest(w.createRequest())
	}
	h.noteProgressLocked(true, 0)
	h.mu.Unlock()
	var sending sync.WaitGroup
	// Sends and receives must not wait for each other. If a send fails, the receiving side is ended, too.
	sending.Go(func() { h.sendRequests(ctx, stream); cancel() })
	defer sending.Wait()
	defer cancel()
	for {
		r, err := stream.Recv()
		if err != nil {
			h.markStreamBroken()
			return answered
		}
		if isLoginRefused(r) {
			h.markStreamBroken()
			h.renewLogin(ctx)
			return answered
		}
		answered = true
		h.handleResponse(r)
	}
}

// isLoginRefused reports whether the server takes no more watches on the stream of this response. A stream keeps the
// login that it began with, if there was one; that login has expired, or the users have changed. A new stream takes
// watches again. Such a response names no watch.
func isLoginRefused(r *pb.WatchResponse) bool {
	return r.Canceled && slices.ContainsFunc([]error{rpctypes.ErrGRPCInvalidAuthToken, rpctypes.ErrGRPCAuthOldRevision,
		rpctypes.ErrGRPCUserEmpty}, func(err error) bool { return r.CancelReason == err.Error() })
}

// sendRequests sends what is queued until the stream ends.
func (h *watchHub) sendRequests(ctx context.Context, stream pb.Watch_WatchClient) {
	for {
		h.mu.Lock()
		queue := h.requests
		h.requests = nil
		h.mu.Unlock()
		for _, r := range queue {
			if stream.Send(r) != nil {
				return
			}
		}
		select {
		case <-h.requestQueued:
		case <-ctx.Done():
			return
		}
	}
}

// handleResponse notifies the owner of a watch of what came for it.
func (h *watchHub) handleResponse(r *pb.WatchResponse) {
	h.mu.Lock()
	w := h.watches[r.WatchId]
	notify := w != nil && len(r.Events) > 0
	switch {
	case r.WatchId == clientv3.InvalidWatchID && !r.Canceled && !r.Created && len(r.Events) == 0:
		h.noteProgressLocked(true, r.Header.Revision)
	case w == nil:
	case r.Canceled: // by the server: its owner polls until there is a new stream
		notify, w.knownUpTo = true, 0
	case r.Created:
		// Nothing is missed from here on, but a change between the owner's snapshot and now was.
		notify = r.Header.Revision > w.knownUpTo
	}
	h.mu.Unlock()
	if notify {
		w.changed()
	}
	// Only now: a watch that is live has reported what it may have missed.
	if w != nil && r.Created && !r.Canceled {
		h.mu.Lock()
		defer h.mu.Unlock()
		w.knownUpTo = isLive
	}
}

// markStreamBroken records that all watches have missed events.
func (h *watchHub) markStreamBroken() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.watches {
		w.knownUpTo = 0
	}
	h.noteProgressLocked(false, 0)
}
