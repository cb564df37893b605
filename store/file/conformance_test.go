//go:build linux || darwin || windows

package file

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/record"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// killableTable is a table whose process can be killed: its liveness lock is released, its file remains, and nothing
// that it does reaches the disk any more.
type killableTable struct {
	*table
	dead atomic.Bool
}

var errKilled = errors.New("killed")

func (m *killableTable) Load(ctx context.Context, name string) (record.Row, error) {
	if m.dead.Load() {
		return record.Row{}, errKilled
	}
	return m.table.Load(ctx, name)
}

func (m *killableTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	if m.dead.Load() {
		return record.Row{}, errKilled
	}
	return m.table.Swap(ctx, row)
}

func (m *killableTable) Delete(ctx context.Context, row record.Row) error {
	if m.dead.Load() {
		return errKilled
	}
	return m.table.Delete(ctx, row)
}

func (m *killableTable) killProcess() {
	m.dead.Store(true)
	m.callsMu.Lock()
	defer m.callsMu.Unlock()
	m.closeHandle(m.liveness.handle)
	m.liveness.handle = -1
}

// TestConformance: the table, opened at once, keeps every promise of the driver's contract.
func TestConformance(t *testing.T) {
	dir := t.TempDir() + "/store"
	var tables sync.Map
	storetest.Conform(t, drivertest.Harness{
		Open: func(ctx context.Context) (driver.Store, error) {
			tab, err := openTable(ctx, dir, nil)
			if err != nil {
				return nil, err
			}
			m := &killableTable{table: tab}
			s := record.New(m)
			tables.Store(s, m)
			return s, nil
		},
		Kill: func(s driver.Store) error {
			found, _ := tables.Load(s)
			m := found.(*killableTable)
			m.killProcess()
			t.Cleanup(func() { _ = m.Close() }) // Wine removes no directory that is open
			return nil
		},
		Restart: func(context.Context) error { return nil }, // there is no server
		Slack:   diskSlack,
	}, drivertest.Options{Parallel: diskParallel})
}

// The suites run fewer cases at a time than those of other stores, with more slack, and one suite after the other:
// they write to one disk, next to the compiler.
const (
	diskParallel = 8
	diskSlack    = 3 * time.Second
)

// TestLazyStoreConformance: the store that opens at its first claim keeps every promise of the driver's contract.
func TestLazyStoreConformance(t *testing.T) {
	dir := t.TempDir() + "/store"
	storetest.Conform(t, drivertest.Harness{
		Open:  func(ctx context.Context) (driver.Store, error) { return New(ctx, dir, nil) },
		Slack: diskSlack,
	}, drivertest.Options{Parallel: diskParallel})
}

// lossyTable is a table whose requests are lost, refused, or lose their reply.
type lossyTable struct {
	*table
	fate func() drivertest.Fate
}

func (l *lossyTable) Load(ctx context.Context, name string) (record.Row, error) {
	return drivertest.Carry(l.fate(), func() (record.Row, error) { return l.table.Load(ctx, name) })
}

func (l *lossyTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	return drivertest.Carry(l.fate(), func() (record.Row, error) { return l.table.Swap(ctx, row) })
}

func (l *lossyTable) Delete(ctx context.Context, row record.Row) error {
	_, err := drivertest.Carry(l.fate(), func() (any, error) { return nil, l.table.Delete(ctx, row) })
	return err
}

// TestLossyConformance: the contract holds when replies are lost and requests are refused.
func TestLossyConformance(t *testing.T) {
	dir := t.TempDir() + "/store"
	storetest.Conform(t, drivertest.Harness{
		Open: func(ctx context.Context) (driver.Store, error) { return New(ctx, dir, nil) },
		Lossy: func(ctx context.Context, fate func() drivertest.Fate) (driver.Store, error) {
			tab, err := openTable(ctx, dir, nil)
			if err != nil {
				return nil, err
			}
			return record.New(&lossyTable{tab, fate}), nil
		},
		Slack: diskSlack,
	}, drivertest.Options{Parallel: diskParallel, Effort: 0.3, LostReplies: 2, Refusals: 2})
}

// TestURL: the store opens by URL, and the error for a wrong URL is ErrInvalid.
func TestURL(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	path := "/" + strings.TrimPrefix(filepath.ToSlash(dir), "/") // before a drive of Windows there is a slash
	for url, ok := range map[string]bool{"file://" + path: true, "file://localhost" + path: true,
		"file://" + path + "?force=true":  true,
		"file://" + path + "?force=maybe": false, "file://" + path + "?forse=true": false,
		"file://relative/dir": false, "file://": false} {
		s, err := driver.Open(t.Context(), url)
		if ok != (err == nil) || err != nil && !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: %v", url, err)
		}
		if err == nil {
			_ = s.Close()
		}
	}
	s, err := New(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if info := s.Info(); info.Store != "file:"+dir || info.Tier != driver.TierFenceSafe || !info.Survives.PowerCut {
		t.Errorf("%+v", info)
	}
	_ = s.Close()
}
