package nats

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/engine/record"
)

// watch is the watch of one key, which all calls of Wait for it share. It stays for a moment when nobody waits: a hub
// that was woken reads the key, and waits again.
//
// The server makes a consumer for each watch. A subscription to the key's subject alone would cost less, but it shows
// a write before it is done, and those that are refused.
type watch struct {
	stop context.CancelFunc

	// Guarded by the table's mu.
	waiting  int
	idle     *time.Timer // ends the watch when nobody has waited for a while
	revision uint64      // the last one that was reported
	removed  bool        // it is a marker
	err      error       // the watch has ended
	changed  chan struct{}
	noticed  chan struct{} // closed by the next message that concerns this client, and when the watch ends

	live   chan struct{} // closed when the consumer exists
	failed chan struct{} // closed when the watch has ended
}

// idleWatch is when a watch ends that no call waits for, counted from the end of the last call.
const idleWatch = 5 * time.Second

// Wait implements record.Notifier.
func (t *table) Wait(ctx context.Context, name, version string) error {
	known, err := parseVersion(version)
	if err != nil {
		return err
	}
	w, err := t.joinWatch(name)
	if err != nil {
		return err
	}
	defer t.leaveWatch(w)
	for {
		t.mu.Lock()
		news, err, changed := w.revision > known.revision && (known.revision > 0 || !w.removed), w.err, w.changed
		t.mu.Unlock()
		switch {
		case news:
			return nil
		case err != nil:
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// joinWatch returns the watch of a name, and begins one if there is none.
func (t *table) joinWatch(name string) (*watch, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.watches[name]
	if w == nil {
		w = &watch{changed: make(chan struct{}), noticed: make(chan struct{}), live: make(chan struct{}),
			failed: make(chan struct{})}
		var ctx context.Context
		ctx, w.stop = context.WithCancel(t.life)
		w.idle = time.AfterFunc(idleWatch, w.stop)
		if !t.life.Go(func() { t.runWatch(ctx, name, w) }) {
			w.stop()
			return nil, t.life.Err()
		}
		t.watches[name] = w
	}
	w.waiting++
	w.idle.Stop()
	return w, nil
}

func (t *table) leaveWatch(w *watch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.waiting--; w.waiting == 0 {
		w.idle.Reset(idleWatch)
	}
}

// runWatch watches a key until ctx ends or the watch fails.
func (t *table) runWatch(ctx context.Context, name string, w *watch) {
	err := t.watchKey(ctx, name, w)
	w.stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	w.idle.Stop()
	if t.watches[name] == w {
		delete(t.watches, name)
	}
	w.err = err
	close(w.changed)
	close(w.noticed)
	close(w.failed)
}

// watchKey subscribes to a consumer of the key's messages without their data. The watches of jetstream.KeyValue are the
// same, but show no headers.
func (t *table) watchKey(ctx context.Context, name string, w *watch) error {
	if err := t.checkConnected(); err != nil {
		return err
	}
	js, err := t.conn().JetStream(nats.APIPrefix(apiPrefix(t.js)))
	if err != nil {
		return err
	}
	tooLong := time.AfterFunc(t.opts.Timeout, w.stop)
	ended := make(chan struct{})
	sub, err := js.Subscribe(t.subject(t.key(name)), func(m *nats.Msg) { t.showMessage(w, m) }, nats.Context(ctx),
		nats.BindStream(t.streamName()), nats.OrderedConsumer(), nats.DeliverLastPerSubject(), nats.HeadersOnly())
	if err != nil {
		tooLong.Stop()
		return err
	}
	tooLong.Stop()
	sub.SetClosedHandler(func(string) { close(ended) })
	defer func() { _ = sub.Unsubscribe() }() // this needs no reply
	close(w.live)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-ended:
		return errors.New("the watch has ended")
	}
}

// showMessage shows the waiters a message of a key. The server keeps a key's last message only, so a watch that is
// behind, or that the client of NATS has begun again, does not show all of them. Each says which one it has replaced.
// If that one was not shown, this client may have missed a notice.
func (t *table) showMessage(w *watch, m *nats.Msg) {
	about, err := m.Metadata()
	if err != nil {
		return
	}
	removed := isMarker(m.Header)
	sessions, ok := m.Header[notifyHeader]
	concerned := removed || !ok || record.NamesSession(strings.Join(sessions, ","), t.session)
	replaced := m.Header.Get(jetstream.ExpectedLastSubjSeqHeader)
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.err != nil {
		return
	}
	missed := w.revision > 0 && replaced != strconv.FormatUint(w.revision, 10)
	w.revision, w.removed = about.Sequence.Stream, removed
	close(w.changed)
	w.changed = make(chan struct{})
	if concerned || missed {
		close(w.noticed)
		w.noticed = make(chan struct{})
	}
}

// isMarker reports whether a message with these headers says that its key was removed.
func isMarker(h nats.Header) bool {
	return h.Get("KV-Operation") != "" || h.Get(jetstream.MarkerReasonHeader) != ""
}

// Session and ListenForNotice implement record.ClientNotifier.
func (t *table) Session() string { return t.session }

func (t *table) ListenForNotice(
	ctx context.Context, name string,
) (noticed <-chan struct{}, stop func(), err error) {
	w, err := t.joinWatch(name)
	if err != nil {
		return nil, nil, err
	}
	t.mu.Lock()
	noticed = w.noticed
	t.mu.Unlock()
	select {
	case <-w.live:
		return noticed, func() { t.leaveWatch(w) }, nil
	case <-w.failed:
		err = errors.New("the watch has ended")
	case <-ctx.Done():
		err = ctx.Err()
	}
	t.leaveWatch(w)
	return nil, nil, err
}
