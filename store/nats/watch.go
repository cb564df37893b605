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

// keyWatch is the watch of one key, which all calls of Wait for it share. It stays for a moment when nobody waits: a
// hub that was woken reads the key, and waits again.
//
// The server makes a consumer for each watch. A subscription to the key's subject alone would cost less, but it shows
// a write before it is done, and those that are refused. Claims outside of the queue look at each change, so they get
// the data with it, and need no read. For those in a queue, which can be long, it gets headers only.
type keyWatch struct {
	of   watched
	stop context.CancelFunc

	// Guarded by the table's mu.
	waiting  int
	epoch    uint64      // in which it began
	idle     *time.Timer // ends the watch when nobody has waited for a while
	revision uint64      // the last one that was reported
	data     []byte      // its data, unless there are headers only
	removed  bool        // it is a marker
	notice   uint64      // the last one that concerns this client, or may have hidden one that does
	err      error       // the watch has ended
	changed  chan struct{}
}

// watched is what a keyWatch watches.
type watched struct {
	name        string
	headersOnly bool
}

// idleWatch is when a watch ends that no call waits for, counted from the end of the last call.
const idleWatch = 5 * time.Second

// Watcher watches keys.
func (t *table) Watcher() record.Watcher { return t }

// Session is a random one.
func (t *table) Session() string { return t.session }

// Watch implements record.Watcher.
func (t *table) Watch(name string) record.Watch { return &watch{table: t, name: name} }

// watch is a record.Watch. Its part in the watch of the key is kept for a while after each Wait.
type watch struct {
	record.PlainWatch
	table *table
	name  string
}

// Wait waits for a message that is newer than the version. The watch begins with the key's last message, so that one
// which is newer already is found.
func (one *watch) Wait(ctx context.Context, version string, place record.Place) (record.Row, error) {
	t := one.table
	known, err := parseVersion(version)
	if err != nil {
		return record.Row{}, err
	}
	w, err := t.joinWatch(watched{one.name, place == record.InQueue})
	if err != nil {
		return record.Row{}, err
	}
	defer t.leaveWatch(w)
	for {
		t.mu.Lock()
		last, err, changed := w.revision, w.err, w.changed
		if place == record.InQueue {
			last = w.notice
		}
		isNews := last > known.revision && (known.revision > 0 || !w.removed)
		var row record.Row
		if isNews && w.epoch == t.epoch.number { // otherwise it may show what the servers have lost
			row = t.takeRow(w)
		}
		t.mu.Unlock()
		switch {
		case isNews:
			return row, nil
		case err != nil:
			return record.Row{}, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return record.Row{}, ctx.Err()
		}
	}
}

// takeRow returns the row that was reported last, if the data came with it. That counts as a read: see mayReplace. It
// is called with mu held.
func (t *table) takeRow(w *keyWatch) record.Row {
	if w.of.headersOnly || w.removed || w.revision == 0 {
		return record.Row{}
	}
	v := versionOf(w.revision, w.data)
	if v.revision >= t.seen[w.of.name].revision {
		t.noteLocked(w.of.name, entry{version: v, epoch: w.epoch})
	}
	return record.Row{Name: w.of.name, Version: v.String(), Data: w.data}
}

// joinWatch returns a watch, and begins it if there is none.
func (t *table) joinWatch(of watched) (*keyWatch, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.watches[of]
	if w == nil {
		w = &keyWatch{of: of, changed: make(chan struct{})}
		var ctx context.Context
		ctx, w.stop = context.WithCancel(t.life)
		w.idle = time.AfterFunc(idleWatch, w.stop)
		if !t.life.Go(func() { t.runWatch(ctx, w) }) {
			w.stop()
			return nil, t.life.Err()
		}
		t.watches[of] = w
	}
	w.waiting++
	w.idle.Stop()
	return w, nil
}

func (t *table) leaveWatch(w *keyWatch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.waiting--; w.waiting == 0 {
		w.idle.Reset(idleWatch)
	}
}

// runWatch watches a key until ctx ends or the watch fails.
func (t *table) runWatch(ctx context.Context, w *keyWatch) {
	err := t.watchKey(ctx, w)
	w.stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	w.idle.Stop()
	if t.watches[w.of] == w {
		delete(t.watches, w.of)
	}
	w.err = err
	close(w.changed)
}

// watchKey subscribes to a consumer of the key's messages. The watches of jetstream.KeyValue are the same, but show no
// headers.
func (t *table) watchKey(ctx context.Context, w *keyWatch) error {
	if err := t.checkConnected(); err != nil {
		return err
	}
	present := t.currentEpoch().number // not in Wait, which must not block: see callServer
	t.mu.Lock()
	w.epoch = present
	t.mu.Unlock()
	js, err := t.conn().JetStream(nats.APIPrefix(apiPrefix(t.js)))
	if err != nil {
		return err
	}
	tooLong := time.AfterFunc(t.opts.Timeout, w.stop)
	ended := make(chan struct{})
	opts := []nats.SubOpt{
		nats.Context(ctx), nats.BindStream(t.streamName()), nats.OrderedConsumer(), nats.DeliverLastPerSubject(),
	}
	if w.of.headersOnly {
		opts = append(opts, nats.HeadersOnly())
	}
	sub, err := js.Subscribe(t.subject(t.key(w.of.name)), func(m *nats.Msg) { t.showMessage(w, m) }, opts...)
	if err != nil {
		tooLong.Stop()
		return err
	}
	tooLong.Stop()
	sub.SetClosedHandler(func(string) { close(ended) })
	defer func() { _ = sub.Unsubscribe() }() // this needs no reply
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
func (t *table) showMessage(w *keyWatch, m *nats.Msg) {
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
	missed := replaced != strconv.FormatUint(w.revision, 10)
	w.revision, w.data, w.removed = about.Sequence.Stream, m.Data, removed
	close(w.changed)
	w.changed = make(chan struct{})
	if concerned || missed {
		w.notice = w.revision
	}
}

// isMarker reports whether a message with these headers says that its key was removed.
func isMarker(h nats.Header) bool {
	return h.Get("KV-Operation") != "" || h.Get(jetstream.MarkerReasonHeader) != ""
}
