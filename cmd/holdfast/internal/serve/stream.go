package serve

import (
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
)

// eventStream is an answer that consists of lines and does not end soon.
type eventStream struct {
	server  *Server
	r       *http.Request
	w       http.ResponseWriter
	control *http.ResponseController
	sse     bool
	started bool          // a line was sent
	timeout time.Duration // for the client's system to accept a line
	sentAt  time.Time     // when the last line was sent
	stop    func() bool   // must be called at the end
}

func (s *Server) newEventStream(w http.ResponseWriter, r *http.Request, timeout time.Duration) *eventStream {
	out := &eventStream{server: s, r: r, w: w, control: http.NewResponseController(w), timeout: timeout,
		sse: strings.Contains(r.Header.Get("Accept"), "text/event-stream")}
	out.stop = s.whenClosing(out.hurryWrite)
	return out
}

// hurryWrite makes the write that is under way, if there is one, end in time for the shutdown, although the client
// reads nothing. Otherwise the server would end before it can leave the client's lock to its TTL.
func (s *eventStream) hurryWrite() {
	if time.Until(s.server.stopBy) < s.timeout {
		_ = s.control.SetWriteDeadline(s.server.stopBy)
	}
}

// event is a kind of line.
type event string

const (
	eventWaiting          event = "waiting"
	eventAcquired         event = "acquired"
	eventRenewed          event = "renewed"
	eventHeartbeat        event = "heartbeat"
	eventReleaseRequested event = "release_requested"
	eventLost             event = "lost"
	eventReleased         event = "released"
	eventDetached         event = "detached"
	eventFailed           event = "failed"
	eventLock             event = "lock"
	eventLeader           event = "leader"
	eventUnknown          event = "unknown"
)

// send sends one line: the event, the time, and the fields of an object. at is from before the object was made, so that
// a time left in it, counted from at, is never too long. An error says that the client may not have got the line.
func (s *eventStream) send(kind event, at time.Time, fields any) error {
	object, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	line := make([]byte, 0, len(object)+96)
	if s.sse {
		line = append(append(append(line, "event: "...), kind...), "\ndata: "...)
	}
	line = append(append(append(line, `{"event":"`...), kind...), `","time":"`...)
	line = append(append(line, shown.FormatTime(at)...), '"')
	if len(object) > len("{}") {
		line = append(append(line, ','), object[1:]...)
	} else {
		line = append(line, '}')
	}
	line = append(line, '\n')
	if s.sse {
		line = append(line, '\n')
	}
	s.start()
	_ = s.control.SetWriteDeadline(time.Now().Add(s.timeout))
	if s.server.isClosing() { // after the deadline was set: so either this or the shutdown itself makes it shorter
		s.hurryWrite()
	}
	if _, err := s.w.Write(line); err != nil {
		return err
	}
	if err := s.control.Flush(); err != nil {
		return err
	}
	s.sentAt = time.Now()
	return nil
}

// start sends the header, once.
func (s *eventStream) start() {
	if s.started {
		return
	}
	s.started = true
	h := s.w.Header()
	h.Set("Content-Type", "application/x-ndjson")
	if s.sse {
		h.Set("Content-Type", "text/event-stream")
	}
	h.Set("Cache-Control", "no-store, no-transform")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Accel-Buffering", "no") // a proxy that knows this passes each line on at once
	s.w.WriteHeader(http.StatusOK)
}

// fail ends the stream with a problem: as the whole answer if nothing was sent, otherwise as the last line.
func (s *eventStream) fail(err error) error {
	p := problemFor(s.r, err)
	if !s.started {
		return p
	}
	_ = s.send(eventFailed, time.Now(), p)
	return nil
}

// streamCount bounds how many streams there are.
type streamCount struct {
	max  int
	open atomic.Int64
}

// enter counts a stream. The caller calls leave if there is no error.
func (c *streamCount) enter() error {
	if c.open.Add(1) > int64(c.max) {
		c.open.Add(-1)
		p := newProblem(codeTooManyStreams, "there are %d streams; --max-streams of the server sets the limit", c.max)
		p.RetryAfter = 1000
		return p
	}
	return nil
}

func (c *streamCount) leave() { c.open.Add(-1) }

// enterStream begins a stream, unless there are too many or the server shuts down.
func (s *Server) enterStream() error {
	if s.isClosing() {
		return errShuttingDown
	}
	return s.streams.enter()
}

// isClosing reports whether the shutdown has begun.
func (s *Server) isClosing() bool { return s.life.Err() != nil }

var errShuttingDown = errors.New("the server shuts down; call another one")

// itemOf is one item of a sequence.
type itemOf[T any] struct {
	value T
	err   error
}

// sendSequence sends the items of a sequence as lines until the client closes the connection, the server shuts down, or
// send says that the stream has ended. open starts the sequence.
func sendSequence[T any](s *Server, w http.ResponseWriter, r *http.Request,
	open func(done <-chan struct{}) iter.Seq2[T, error],
	send func(out *eventStream, at time.Time, item T, err error) (more bool, failed error),
) error {
	beat, err := queryNumber(r, "heartbeat_ms", int(defaultStreamBeat.Milliseconds()), 100, 60_000)
	if err != nil {
		return err
	}
	if err := s.enterStream(); err != nil {
		return err
	}
	defer s.streams.leave()
	out := s.newEventStream(w, r, responseTimeout)
	defer out.stop()
	done, items, ended := make(chan struct{}), make(chan itemOf[T]), make(chan struct{})
	go func() {
		defer close(ended)
		for value, err := range open(done) {
			select {
			case items <- itemOf[T]{value, err}:
			case <-done:
				return
			}
		}
	}()
	defer func() { close(done); <-ended }()
	every := time.Duration(beat) * time.Millisecond
	rights, err := s.checkRight(r)
	if err != nil {
		return err
	}
	timer := time.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case <-r.Context().Done():
			return nil
		case <-s.closing:
			return out.fail(errShuttingDown)
		case <-rights:
			if rights, err = s.checkRight(r); err != nil {
				return out.fail(err)
			}
		case item := <-items:
			if _, err := s.checkRight(r); err != nil { // nothing is shown any more
				return out.fail(err)
			}
			more, err := send(out, time.Now(), item.value, item.err)
			if err != nil {
				connectionOf(r).abort()
			}
			if !more {
				return out.fail(item.err)
			}
			timer.Reset(every)
		case <-ended:
			return out.fail(errors.New("the store ended the answer"))
		case <-timer.C:
			if out.send(eventHeartbeat, time.Now(), struct{}{}) != nil {
				connectionOf(r).abort()
			}
			timer.Reset(every)
		}
	}
}
