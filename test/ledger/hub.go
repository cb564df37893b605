package ledger

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// Request is what a worker sends to the hub, one JSON object per line. Each is answered by a Reply.
type Request struct {
	Op       string
	Slot     int
	Delivery int
	Key      string
	Token    int64
	Run      string
	Late     bool // the process was stopped between its work and this write
}

const (
	opNext  = "next"  // a delivery is wanted
	opAck   = "ack"   // its event has succeeded
	opAgain = "again" // its event is to be delivered again
	opWrite = "write" // the work on an event writes to the resource
)

// Reply is what the hub answers.
type Reply struct {
	Done     bool // all events were handled
	Delivery int
	Key      string
	Refused  bool // the token is smaller than the largest one
	Stopped  bool // the process was stopped between the write and this reply
}

const (
	fateInterval = 10 // after one accepted write in so many, the worker is killed or stopped
	againDelay   = 100 * time.Millisecond
	hiddenFor    = 2 * time.Second // then a delivery is made again that was not acknowledged
)

// Workers ends the processes of workers between their work and their report.
type Workers interface {
	// Kill kills the process in a slot.
	Kill(slot int)
	// Stop stops the process in a slot until resume is closed. It returns false if it is not to be stopped now.
	Stop(slot int, resume <-chan struct{}) bool
}

// Hub is the queue of the events, and the resource that the work on them writes to.
type Hub struct {
	listener net.Listener
	workers  Workers

	mu       sync.Mutex
	changed  *sync.Cond
	events   []string // by delivery
	ready    []int    // deliveries that can be made now
	made     []int    // how often each delivery was made
	acked    []bool   // by delivery
	left     int      // deliveries that were not acknowledged
	largest  map[string]int64
	writers  map[string]string     // by key: the run of the last accepted write
	awaiting map[string][]stopping // by key: workers that stay stopped until a larger token has written
	broken   []string              // what must not happen
	// untilFate counts down to the next write after which the worker is killed or stopped.
	untilFate int
	Counts
}

// stopping is a worker that was stopped between its work and its report.
type stopping struct {
	token  int64
	resume chan struct{}
}

// Counts is what the hub has seen.
type Counts struct {
	Events, Deliveries, Redelivered int
	Writes, Repeated, Refused       int // accepted; those of them by a later run of the same event; refused
	KilledBeforeReport              int
	StoppedBeforeReport             int
	LateRefused                     int // writes of workers that were stopped before their report
}

// NewHub makes a hub of that many events, which listens on a socket at path.
func NewHub(path string, events int, workers Workers) (*Hub, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	h := &Hub{listener: l, workers: workers, largest: map[string]int64{},
		writers: map[string]string{}, awaiting: map[string][]stopping{},
		untilFate: fateInterval / 2}
	h.changed = sync.NewCond(&h.mu)
	h.addEvents(events)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go h.serveWorker(conn)
		}
	}()
	return h, nil
}

func eventKey(i int) string { return fmt.Sprintf("event-%04d", i) }

// addEvents plans the deliveries: each event comes 3 to 10 times at once, and twice later.
func (h *Hub) addEvents(n int) {
	const replayAfter = 30 // events
	for i := range n + 2*replayAfter {
		if i < n {
			for range 3 + rand.N(8) {
				h.events = append(h.events, eventKey(i))
			}
		}
		for _, replayed := range []int{i - replayAfter, i - 2*replayAfter} {
			if replayed >= 0 && replayed < n {
				h.events = append(h.events, eventKey(replayed))
			}
		}
	}
	for d := range h.events {
		h.ready = append(h.ready, d)
	}
	h.left, h.made, h.acked = len(h.events), make([]int, len(h.events)), make([]bool, len(h.events))
	h.Events, h.Deliveries = n, len(h.events)
}

func (h *Hub) serveWorker(conn net.Conn) {
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		var r Request
		if json.Unmarshal(lines.Bytes(), &r) != nil {
			return
		}
		reply := h.replyTo(r)
		if r.Op == opWrite && !r.Late && !reply.Refused {
			var killed bool
			if killed, reply.Stopped = h.interruptWorker(r); killed {
				continue
			}
		}
		answer, _ := json.Marshal(reply)
		if _, err := conn.Write(append(answer, '\n')); err != nil {
			return
		}
	}
}

func (h *Hub) replyTo(r Request) Reply {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch r.Op {
	case opNext:
		return h.nextDelivery()
	case opAck:
		if !h.acked[r.Delivery] { // otherwise it was delivered again, and acknowledged, meanwhile
			h.acked[r.Delivery] = true
			h.left--
			h.changed.Broadcast()
		}
	case opAgain:
		h.hideFor(r.Delivery, againDelay)
	case opWrite:
		return h.acceptWrite(r)
	}
	return Reply{}
}

// nextDelivery waits for a delivery. A worker that dies meanwhile does not get it, so it is made again later.
func (h *Hub) nextDelivery() Reply {
	for h.left > 0 {
		if len(h.ready) == 0 {
			h.changed.Wait()
			continue
		}
		d := h.ready[0]
		h.ready = h.ready[1:]
		if !h.acked[d] {
			h.hideFor(d, hiddenFor)
			return Reply{Delivery: d, Key: h.events[d]}
		}
	}
	return Reply{Done: true}
}

// hideFor makes a delivery again after a time, unless it was acknowledged or hidden again by then.
func (h *Hub) hideFor(d int, after time.Duration) {
	h.made[d]++
	times := h.made[d]
	time.AfterFunc(after, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.made[d] == times && !h.acked[d] {
			h.ready = append(h.ready, d)
			h.Redelivered++
			h.changed.Broadcast()
		}
	})
}

// acceptWrite is the resource.
func (h *Hub) acceptWrite(r Request) Reply {
	if r.Token < h.largest[r.Key] {
		h.Refused++
		if r.Late {
			h.LateRefused++
		}
		return Reply{Refused: true}
	}
	if r.Late {
		h.broken = append(h.broken, fmt.Sprintf("a late write to %s under token %d was accepted", r.Key, r.Token))
	}
	if h.writers[r.Key] != "" && h.writers[r.Key] != r.Run {
		h.Repeated++
		if r.Token == h.largest[r.Key] {
			h.broken = append(h.broken, fmt.Sprintf("two runs of %s have token %d", r.Key, r.Token))
		}
	}
	h.Writes++
	h.largest[r.Key], h.writers[r.Key] = r.Token, r.Run
	h.resumeOlder(r.Key, r.Token)
	return Reply{}
}

// resumeOlder continues the workers of earlier runs that were stopped before their report.
func (h *Hub) resumeOlder(key string, token int64) {
	var left []stopping
	for _, s := range h.awaiting[key] {
		if s.token < token {
			close(s.resume)
		} else {
			left = append(left, s)
		}
	}
	h.awaiting[key] = left
}

// interruptWorker kills or stops some of the workers that have written and not reported yet. It returns when the worker
// may have the reply.
func (h *Hub) interruptWorker(r Request) (killed, stopped bool) {
	h.mu.Lock()
	h.untilFate--
	if h.untilFate > 0 || h.largest[r.Key] > r.Token { // nothing would resume a worker after a later run has written
		h.mu.Unlock()
		return false, false
	}
	h.untilFate = fateInterval
	if h.KilledBeforeReport <= h.StoppedBeforeReport {
		h.KilledBeforeReport++
		h.mu.Unlock()
		h.workers.Kill(r.Slot)
		return true, false
	}
	s := stopping{r.Token, make(chan struct{})}
	h.awaiting[r.Key] = append(h.awaiting[r.Key], s)
	h.mu.Unlock()
	if !h.workers.Stop(r.Slot, s.resume) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.untilFate = 1
		return false, false
	}
	<-s.resume
	h.mu.Lock()
	defer h.mu.Unlock()
	h.StoppedBeforeReport++
	return false, true
}

// AwaitEnd waits until all deliveries were acknowledged.
func (h *Hub) AwaitEnd(limit time.Duration) error {
	expired := false
	timer := time.AfterFunc(limit, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		expired = true
		h.changed.Broadcast()
	})
	defer timer.Stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.left > 0 && !expired {
		h.changed.Wait()
	}
	if h.left > 0 {
		return fmt.Errorf("%d of %d deliveries were not acknowledged within %v", h.left, len(h.events), limit)
	}
	return nil
}

// Close closes the hub, and returns what it has seen, and what must not happen.
func (h *Hub) Close() (Counts, []string) {
	h.listener.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.Counts, h.broken
}

// Writer returns the run of the last write to a key that was accepted.
func (h *Hub) Writer(key string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.writers[key]
}
