//go:build linux || darwin

package file

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// mortal is a table whose process can be killed: its presence lock is let go of, its file stays, and nothing it does
// reaches the disk any more.
type mortal struct {
	*table
	dead atomic.Bool
}

var errKilled = errors.New("killed")

func (m *mortal) Load(ctx context.Context, name string) (record.Row, error) {
	if m.dead.Load() {
		return record.Row{}, errKilled
	}
	return m.table.Load(ctx, name)
}

func (m *mortal) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	if m.dead.Load() {
		return record.Row{}, errKilled
	}
	return m.table.Swap(ctx, row)
}

func (m *mortal) Delete(ctx context.Context, row record.Row) error {
	if m.dead.Load() {
		return errKilled
	}
	return m.table.Delete(ctx, row)
}

func (m *mortal) kill() {
	m.dead.Store(true)
	m.callsMu.Lock()
	defer m.callsMu.Unlock()
	m.closeHandle(m.liveness.handle)
	m.liveness.handle = -1
}

// TestConformance: the store keeps every promise of the contract.
func TestConformance(t *testing.T) {
	dir := t.TempDir() + "/store"
	var tables sync.Map
	storetest.Conform(t, drivertest.Harness{
		Open: func(ctx context.Context) (driver.Store, error) {
			tab, err := openTable(ctx, dir, nil)
			if err != nil {
				return nil, err
			}
			m := &mortal{table: tab}
			s := record.New(m)
			tables.Store(s, m)
			return s, nil
		},
		Kill: func(s driver.Store) error {
			m, _ := tables.Load(s)
			m.(*mortal).kill()
			return nil
		},
		Restart: func(context.Context) error { return nil }, // there is no server
		Slack:   diskSlack,
	}, drivertest.Options{Parallel: diskParallel})
}

// Fewer cases at a time than elsewhere, and more time: they write to one disk, beside the compiler. So the two suites run one
// after the other, too.
const (
	diskParallel = 8
	diskSlack    = 3 * time.Second
)

// TestStoreConformance: nor does it break one by being made late.
func TestStoreConformance(t *testing.T) {
	dir := t.TempDir() + "/store"
	storetest.Conform(t, drivertest.Harness{
		Open:  func(context.Context) (driver.Store, error) { return New(dir, nil) },
		Slack: diskSlack,
	}, drivertest.Options{Parallel: diskParallel})
}

// lossy is a table whose requests meet their fates.
type lossy struct {
	*table
	fate func() drivertest.Fate
}

func (l *lossy) Load(ctx context.Context, name string) (record.Row, error) {
	return drivertest.Carry(l.fate(), func() (record.Row, error) { return l.table.Load(ctx, name) })
}

func (l *lossy) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	return drivertest.Carry(l.fate(), func() (record.Row, error) { return l.table.Swap(ctx, row) })
}

func (l *lossy) Delete(ctx context.Context, row record.Row) error {
	_, err := drivertest.Carry(l.fate(), func() (any, error) { return nil, l.table.Delete(ctx, row) })
	return err
}

// TestLossy: nor does it when replies are lost, and requests refused.
func TestLossy(t *testing.T) {
	dir := t.TempDir() + "/store"
	storetest.Conform(t, drivertest.Harness{
		Open: func(context.Context) (driver.Store, error) { return New(dir, nil) },
		Lossy: func(ctx context.Context, fate func() drivertest.Fate) (driver.Store, error) {
			tab, err := openTable(ctx, dir, nil)
			if err != nil {
				return nil, err
			}
			return record.New(&lossy{tab, fate}), nil
		},
		Slack: diskSlack,
	}, drivertest.Options{Parallel: diskParallel, Effort: 0.3, LostReplies: 2, Refusals: 2})
}

// TestURL: the store is opened by URL, and says what is wrong with one.
func TestURL(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/store"
	for url, ok := range map[string]bool{"file://" + dir: true, "file://localhost" + dir: true, "file://" + dir + "?force=true": true,
		"file://" + dir + "?force=maybe": false, "file://" + dir + "?forse=true": false, "file://relative/dir": false, "file://": false} {
		s, err := driver.Open(t.Context(), url)
		if ok != (err == nil) || err != nil && !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v", url, err)
		}
		if err == nil {
			_ = s.Close()
		}
	}
	s, err := New(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if info := s.Info(); info.Store != "file:"+dir || info.Tier != driver.TierFenceSafe || !info.Survives.PowerCut {
		t.Errorf("%+v", info)
	}
	_ = s.Close()
}
