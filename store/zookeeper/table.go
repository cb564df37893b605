package zookeeper

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/engine/sequence"
	"github.com/holdfast-go/holdfast/internal/bound"
)

// table is ZooKeeper as a record.Table: a node a record. A node's version begins anew when it is made anew, so each record has a
// child whose random name is that of its life: a swap is a step of two, which checks that the child is there. The data
// begin with that name.
type table struct {
	t    *tree
	life context.Context // ends with the table, or with the store
	end  context.CancelFunc
}

func newTable(t *tree) *table {
	tb := &table{t: t}
	tb.life, tb.end = context.WithCancel(t.life)
	return tb
}

// records is the node above all records, below the namespace. No lock's path has it: there a % begins two digits.
const records = "%records"

// tokenGap is how far the wall clocks of two clients may be apart before a token could fall that is made without a record
// of the one before.
const tokenGap = time.Minute

func (tb *table) path(name string) string {
	return tb.t.root + "/" + records + "/" + flat(name, false)
}

// Info promises what the ensemble does.
func (tb *table) Info() driver.Info {
	i := tb.t.info
	if i.Clock.Monotonic == nil {
		i.Clock = driver.SystemClock
	}
	i.Kinds = nil
	i.ExpiryClock = driver.ExpiryClockObserver
	i.TokenGap = tokenGap
	return i
}

// Now is this machine's wall clock, made never to fall, and good for tokens only.
func (tb *table) Now() (int64, time.Duration) {
	tb.t.mu.Lock()
	defer tb.t.mu.Unlock()
	tb.t.micros = max(tb.t.micros, time.Now().UnixMicro())
	return tb.t.micros, -1
}

// answerTime is how long one request for a record may take.
const answerTime = 2 * time.Second

func bounded(ctx context.Context, request func(context.Context) error) error {
	return bound.Ask(ctx, answerTime, "ZooKeeper", request)
}

// read is the tree's, behind a sync if it has to be fresh, within a bound.
func (tb *table) read(ctx context.Context, fresh bool, ask func() []*call) (calls []*call, err error) {
	err = bounded(ctx, func(ctx context.Context) (err error) {
		calls, _, err = tb.t.read(ctx, fresh, ask)
		return err
	})
	return calls, err
}

// row understands a record's node as it was read.
func row(name string, r *reader) (record.Row, error) {
	data := r.bytes()
	s := r.stat()
	life, text, ok := bytes.Cut(data, []byte("\n"))
	if r.err != nil || !ok {
		return record.Row{Name: name}, fmt.Errorf("%w: record %q: %q", driver.ErrCorrupt, name, data)
	}
	return record.Row{Name: name, Version: string(life) + "." + strconv.Itoa(int(s.version)), Data: text}, nil
}

// Load is one read, behind a sync.
func (tb *table) Load(ctx context.Context, name string) (record.Row, error) {
	if tb.life.Err() != nil {
		return record.Row{}, driver.ErrClosed
	}
	path := tb.path(name)
	calls, err := tb.read(ctx, true, func() []*call { return []*call{readCall(opGetData, path, false)} })
	switch {
	case err != nil:
		return record.Row{}, tb.t.fault(err, path)
	case calls[0].err == codeNoNode:
		return record.Row{Name: name}, nil
	case calls[0].err != nil:
		return record.Row{}, tb.t.fault(calls[0].err, path)
	}
	return row(name, &calls[0].rest)
}

// Swap is one multi.
func (tb *table) Swap(ctx context.Context, r record.Row) (record.Row, error) {
	if len(r.Data) > record.MaxData {
		return record.Row{}, fmt.Errorf("%w: a record of %d bytes", driver.ErrInvalid, len(r.Data))
	}
	path := tb.path(r.Name)
	life, version, err := tb.version(r)
	if err != nil {
		return record.Row{}, err
	}
	if life == "" {
		life = strings.ToLower(rand.Text())
		data := append([]byte(life+"\n"), r.Data...)
		err = tb.write(ctx, path, createCall(opCreate, path, data, tb.t.opts.ACL, modePersistent),
			createCall(opCreate, path+"/"+life, nil, tb.t.opts.ACL, modePersistent))
		r.Version = life + ".0"
	} else {
		data := append([]byte(life+"\n"), r.Data...)
		err = tb.write(ctx, path, checkCall(path+"/"+life, -1), setCall(path, data, version))
		r.Version = life + "." + strconv.Itoa(int(version)+1)
	}
	if err != nil {
		return record.Row{}, err
	}
	return r, nil
}

// Delete is one multi.
func (tb *table) Delete(ctx context.Context, r record.Row) error {
	life, version, err := tb.version(r)
	if err != nil {
		return err
	}
	if life != "" {
		path := tb.path(r.Name)
		if err := tb.write(ctx, path, deleteCall(path+"/"+life, -1), deleteCall(path, version)); err != record.ErrConflict {
			return err
		}
	}
	now, err := tb.Load(ctx, r.Name)
	if err == nil && now.Version != "" {
		return record.ErrConflict
	}
	return err
}

// version takes the version of a row apart.
func (tb *table) version(r record.Row) (life string, version int32, err error) {
	if tb.life.Err() != nil {
		return "", 0, driver.ErrClosed
	}
	if r.Version == "" {
		return "", 0, nil
	}
	life, text, _ := strings.Cut(r.Version, ".")
	v, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return "", 0, fmt.Errorf("%w: the version %q", driver.ErrInvalid, r.Version)
	}
	return life, int32(v), nil
}

// write makes steps together, and the nodes above if they are not there.
func (tb *table) write(ctx context.Context, path string, steps ...*call) error {
	for try := 0; ; try++ {
		multi := multiCall(steps...)
		if err := bounded(ctx, func(ctx context.Context) error { return tb.t.write(ctx, &write{calls: []*call{multi}, alone: true}) }); err != nil {
			return tb.t.fault(err, path)
		}
		results, err := multi.results()
		if err != nil {
			return tb.t.fault(err, path)
		}
		_, failed := refused(results)
		switch failed {
		case codeOK:
			return nil
		case codeNoNode:
			if steps[0].op == opCreate && try < 3 {
				err := bounded(ctx, func(ctx context.Context) error {
					c, err := tb.t.anyConn(ctx)
					if err == nil {
						err = tb.t.parents(ctx, c, path[:strings.LastIndexByte(path, '/')])
					}
					return err
				})
				if err != nil && err != sequence.ErrSessionExpired {
					return tb.t.fault(err, path)
				}
				continue
			}
			return record.ErrConflict
		case codeNodeExists, codeBadVersion:
			return record.ErrConflict
		}
		return tb.t.fault(failed, path)
	}
}

// List lists the children of the node above, and reads those that match.
func (tb *table) List(ctx context.Context, prefix string) iter.Seq2[record.Row, error] {
	return func(yield func(record.Row, error) bool) {
		if tb.life.Err() != nil {
			yield(record.Row{}, driver.ErrClosed)
			return
		}
		dir := tb.t.root + "/" + records
		calls, err := tb.read(ctx, true, func() []*call { return []*call{readCall(opGetChildren, dir, false)} })
		if err == nil && calls[0].err != nil && calls[0].err != codeNoNode {
			err = calls[0].err
		}
		if err != nil {
			yield(record.Row{}, tb.t.fault(err, dir))
			return
		}
		var names []string
		if calls[0].err == nil {
			for _, key := range calls[0].rest.texts() {
				if name, ok := unescape(key); ok && strings.HasPrefix(name, prefix) {
					names = append(names, name)
				}
			}
		}
		for len(names) > 0 {
			some := names[:min(len(names), sequence.MaxRead)]
			names = names[len(some):]
			calls, err := tb.read(ctx, false, func() (calls []*call) {
				for _, name := range some {
					calls = append(calls, readCall(opGetData, tb.path(name), false))
				}
				return calls
			})
			if err != nil {
				yield(record.Row{}, tb.t.fault(err, dir))
				return
			}
			for i, a := range calls {
				if a.err == codeNoNode {
					continue
				}
				r, err := record.Row{Name: some[i]}, tb.t.fault(a.err, dir)
				if err == nil {
					r, err = row(some[i], &a.rest)
				}
				if !yield(r, err) {
					return
				}
			}
		}
	}
}

// Wait subscribes, and looks when something has happened since.
func (tb *table) Wait(ctx context.Context, name, version string) error {
	changed := make(chan struct{}, 1)
	defer tb.t.watch(&listener{t: tb.t, at: spotKey{onData, tb.path(name)}, returns: true, changed: func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}})()
	for {
		if now, err := tb.Load(ctx, name); err != nil || now.Version != version {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-tb.life.Done():
			return driver.ErrClosed
		}
	}
}

// Close leaves the store to go on.
func (tb *table) Close() error {
	tb.end()
	return nil
}
