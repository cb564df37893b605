package storm

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/pace"
)

// Request is what a worker sends to the witness, one JSON object per line. Each is answered by a Reply.
type Request struct {
	Op    string // "hold": the lock was granted; "read"; "write"; "done": the lock is about to be given back
	Pid   int
	Token int64
	Value int64
}

// Reply is what the witness answers.
type Reply struct {
	Value   int64
	Refused bool // the token is older than one seen
}

// Witness is the resource that the lock guards.
type Witness struct {
	listener  net.Listener
	machine   pace.Pace
	stopWatch func()

	mu      sync.Mutex
	value   int64
	largest int64
	Counts
	holder  int       // pid of the process that last reported that it holds the lock; 0: none
	since   time.Time // when that last changed
	changed chan struct{}
}

// Counts is what the witness has seen.
type Counts struct {
	Writes   int           // accepted
	Stale    int           // refused for their token
	Lost     int           // accepted although not made from the present value: two were inside
	Repeated int           // a token held twice, or falling
	Longest  time.Duration // the longest time between two accepted writes, without the delays of the machine
	last     time.Time
}

// NewWitness listens on a socket at path. It measures how late the machine and the disk of that path are.
func NewWitness(path string) (*Witness, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	w := &Witness{listener: l, changed: make(chan struct{})}
	w.stopWatch = w.machine.WatchDisk(filepath.Dir(path))
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go w.serveWorker(conn)
		}
	}()
	return w, nil
}

// Close closes the witness, and returns what it has seen.
func (w *Witness) Close() Counts {
	w.listener.Close()
	w.stopWatch()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Counts
}

func (w *Witness) serveWorker(conn net.Conn) {
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		var ask Request
		if json.Unmarshal(lines.Bytes(), &ask) != nil {
			return
		}
		answer, _ := json.Marshal(w.replyTo(ask))
		if _, err := conn.Write(append(answer, '\n')); err != nil {
			return
		}
	}
}

func (w *Witness) replyTo(ask Request) Reply {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch ask.Op {
	case "hold":
		if ask.Token <= w.largest {
			if ask.Token == w.largest {
				w.Repeated++
			}
			return Reply{Refused: true}
		}
		w.largest = ask.Token
		w.recordHolder(ask.Pid)
	case "done":
		if ask.Token == w.largest {
			w.recordHolder(0)
		}
	case "write":
		if ask.Token < w.largest {
			w.Stale++
			return Reply{Refused: true}
		}
		if ask.Value != w.value+1 {
			w.Lost++
		}
		w.value = ask.Value
		w.Writes++
		now := time.Now()
		if !w.last.IsZero() {
			w.Longest = max(w.Longest, w.timeSince(w.last))
		}
		w.last = now
	}
	return Reply{Value: w.value}
}

// timeSince is how long ago a moment is, without the delays of the machine: each of some ten steps, in several
// processes and on the disk, may have been as late as the worst that was measured.
func (w *Witness) timeSince(moment time.Time) time.Duration {
	return max(0, time.Since(moment)-max(w.machine.Lost(moment), 10*w.machine.Worst(moment)))
}

func (w *Witness) recordHolder(pid int) {
	w.holder, w.since = pid, time.Now()
	close(w.changed)
	w.changed = make(chan struct{})
}

// Holder returns the pid of the holder, or 0, and a channel that is closed when that changes.
func (w *Witness) Holder() (int, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.holder, w.changed
}

// AwaitHolder waits until another process than pid holds the lock, and returns how long that took, without the delays
// of the machine.
func (w *Witness) AwaitHolder(not int, limit time.Duration) (time.Duration, error) {
	from := time.Now()
	deadline := time.After(limit)
	for {
		pid, changed := w.Holder()
		if pid != 0 && pid != not {
			return w.timeSince(from), nil
		}
		select {
		case <-changed:
		case <-deadline:
			return limit, fmt.Errorf("nobody but %d has had the lock for %v", not, limit)
		}
	}
}
