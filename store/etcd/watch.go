package etcd

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver/driverutil"
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
// meanwhile, and then the watch is cancelled ("KV API guarantees" in etcd's documentation: events are kept as long as
// the history is). The owners read the lock again in any case, so a replay would add nothing.
type watchHub struct {
	life       *driverutil.Lifetime // that of the store, which waits for the hub's goroutine
	client     pb.WatchClient
	renewLogin func(context.Context) // renews a login that has expired

	mu            sync.Mutex
	running       bool
	lastID        int64 // ID of the newest watch; no ID is used twice
	watches       map[int64]*watch
	requests      []*pb.WatchRequest // to be sent on the present stream
	requestQueued chan struct{}      // buffered; wakes sendRequests
}

// watch is one subscription. Its fields do not change, except interrupted.
type watch struct {
	key, end     string
	removalsOnly bool
	seenRevision int64 // the revision of the owner's last snapshot; 0: none
	changed      func()
	interrupted  bool // its stream broke; guarded by the hub's mutex
}

func newWatchHub(life *driverutil.Lifetime, client pb.WatchClient, login func(context.Context)) *watchHub {
	return &watchHub{
		life: life, client: client, renewLogin: login,
		watches: map[int64]*watch{}, requestQueued: make(chan struct{}, 1),
	}
}

// add begins a watch. It does no I/O.
func (h *watchHub) add(w *watch) (stop func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.life.Err() != nil {
		return func() {}
	}
	h.lastID++
	id := h.lastID
	h.watches[id] = w
	// The stream is opened with the first watch, and creates all watches that exist by then.
	if !h.running {
		h.running = true
		h.life.Go(h.run)
	} else {
		h.queueRequest(w.createRequest(id))
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.watches[id] == w {
			delete(h.watches, id)
			cancel := &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: id}}
			h.queueRequest(&pb.WatchRequest{RequestUnion: cancel})
		}
	}
}

// createRequest is the request that begins the watch on a stream.
func (w *watch) createRequest(id int64) *pb.WatchRequest {
	r := &pb.WatchCreateRequest{Key: []byte(w.key), WatchId: id}
	if w.end != "" {
		r.RangeEnd = []byte(w.end)
	}
	if w.removalsOnly {
		r.Filters = []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}
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
	// What was queued for the last stream is dropped. Every watch that still exists is created here, and the others need
	// no cancellation on this stream.
	h.mu.Lock()
	h.requests = nil
	for id, w := range h.watches {
		h.queueRequest(w.createRequest(id))
	}
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
// login that it began with; that login has expired, or the users have changed. A new stream takes watches again. Such a
// response names no watch.
func isLoginRefused(r *pb.WatchResponse) bool {
	expired, changed := rpctypes.ErrGRPCInvalidAuthToken.Error(), rpctypes.ErrGRPCAuthOldRevision.Error()
	return r.Canceled && (r.CancelReason == expired || r.CancelReason == changed)
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
	case w == nil:
	case r.Canceled: // by the server: its owner polls until there is a new stream
		notify, w.interrupted = true, true
	case r.Created:
		// Nothing is missed from here on, but a change between the owner's snapshot and now was.
		notify = w.interrupted || r.Header.Revision > w.seenRevision
		w.interrupted = false
	}
	h.mu.Unlock()
	if notify {
		w.changed()
	}
}

// markStreamBroken records that all watches have missed events.
func (h *watchHub) markStreamBroken() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.watches {
		w.interrupted = true
	}
}
