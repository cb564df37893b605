package etcd

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// hub is one watch stream for all that a store watches. A watch costs no goroutine, and ten thousand of them two. It
// knows nothing of past revisions: when a stream breaks, all watches are made again on the next, and all are told.
type hub struct {
	life   context.Context
	client pb.WatchClient
	login  func(context.Context) // renews one that has expired
	work   sync.WaitGroup

	mu      sync.Mutex
	running bool
	last    int64 // id of the newest watch; ids are never used twice
	watches map[int64]*watch
	queue   []*pb.WatchRequest // to be sent on the stream that stands
	more    chan struct{}      // buffered: there is something in the queue
}

// watch is one subscription. Its fields do not change but for again.
type watch struct {
	key, end string
	goneOnly bool
	seen     int64 // the revision that its owner has looked at; 0: none
	changed  func()
	again    bool // a stream broke under it; guarded by the hub's mutex
}

func newHub(life context.Context, client pb.WatchClient, login func(context.Context)) *hub {
	return &hub{life: life, client: client, login: login, watches: map[int64]*watch{}, more: make(chan struct{}, 1)}
}

func (h *hub) watch(w *watch) (stop func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.life.Err() != nil {
		return func() {}
	}
	h.last++
	id := h.last
	h.watches[id] = w
	if !h.running {
		h.running = true
		h.work.Go(h.run)
	} else {
		h.push(w.create(id))
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.watches[id] == w {
			delete(h.watches, id)
			h.push(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: id}}})
		}
	}
}

func (w *watch) create(id int64) *pb.WatchRequest {
	r := &pb.WatchCreateRequest{Key: []byte(w.key), WatchId: id}
	if w.end != "" {
		r.RangeEnd = []byte(w.end)
	}
	if w.goneOnly {
		r.Filters = []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}
	}
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}}
}

func (h *hub) push(r *pb.WatchRequest) {
	h.queue = append(h.queue, r)
	select {
	case h.more <- struct{}{}:
	default:
	}
}

func (h *hub) wait() { h.work.Wait() }

// run keeps a stream standing.
func (h *hub) run() {
	for fails := 0; h.life.Err() == nil; fails++ {
		if h.stream() {
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

// stream makes all watches on one stream and hears it until it breaks, or takes no more of them, and reports whether it ever
// spoke. A member without a leader breaks it, so that no watch stays with one that hears of nothing.
func (h *hub) stream() (spoke bool) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(h.life))
	defer cancel()
	stream, err := h.client.Watch(ctx, grpc.MaxCallRecvMsgSize(math.MaxInt32))
	if err != nil {
		return false
	}
	h.mu.Lock()
	h.queue = nil
	for id, w := range h.watches {
		h.push(w.create(id))
	}
	h.mu.Unlock()
	var sending sync.WaitGroup
	sending.Go(func() { h.send(ctx, stream); cancel() })
	defer sending.Wait()
	defer cancel()
	for {
		r, err := stream.Recv()
		if err != nil {
			h.broken()
			return spoke
		}
		if refusesLogin(r) {
			h.broken()
			h.login(ctx)
			return spoke
		}
		spoke = true
		h.hear(r)
	}
}

// refusesLogin reports whether the server takes no more watches on the stream that an answer came by: a stream keeps the login
// that it began with, and that expires, or the users have changed. On a new one they are taken. Such an answer names no watch.
func refusesLogin(r *pb.WatchResponse) bool {
	return r.Canceled && (r.CancelReason == rpctypes.ErrGRPCInvalidAuthToken.Error() || r.CancelReason == rpctypes.ErrGRPCAuthOldRevision.Error())
}

func (h *hub) send(ctx context.Context, stream pb.Watch_WatchClient) {
	for {
		h.mu.Lock()
		queue := h.queue
		h.queue = nil
		h.mu.Unlock()
		for _, r := range queue {
			if stream.Send(r) != nil {
				return
			}
		}
		select {
		case <-h.more:
		case <-ctx.Done():
			return
		}
	}
}

// hear tells the owner of a watch what came for it.
func (h *hub) hear(r *pb.WatchResponse) {
	h.mu.Lock()
	w := h.watches[r.WatchId]
	tell := w != nil && len(r.Events) > 0
	switch {
	case w == nil:
	case r.Canceled: // by the server: its owner polls until the stream is made anew
		tell, w.again = true, true
	case r.Created:
		// Nothing is missed from here on. What came between the owner's look and now is.
		tell = w.again || r.Header.Revision > w.seen
		w.again = false
	}
	h.mu.Unlock()
	if tell {
		w.changed()
	}
}

func (h *hub) broken() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.watches {
		w.again = true
	}
}
