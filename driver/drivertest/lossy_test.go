package drivertest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/record"
)

// TestTransportOfFates: Transport does to each request what its fate says.
func TestTransportOfFates(t *testing.T) {
	t.Parallel()
	var served atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served.Add(1) }))
	defer server.Close()
	for _, c := range []struct {
		fate   drivertest.Fate
		served int64
		lost   bool
		status int
	}{
		{drivertest.Pass, 1, false, 200}, {drivertest.LoseRequest, 0, true, 0},
		{drivertest.LoseReply, 1, true, 0}, {drivertest.Refuse, 0, false, 503},
	} {
		served.Store(0)
		client := &http.Client{Transport: &drivertest.Transport{Fate: func() drivertest.Fate { return c.fate }}}
		resp, err := client.Get(server.URL)
		if errors.Is(err, drivertest.ErrLost) != c.lost || served.Load() != c.served {
			t.Errorf("fate %d: %v, served %d times", c.fate, err, served.Load())
		}
		if err == nil {
			if resp.StatusCode != c.status {
				t.Errorf("fate %d: status %d", c.fate, resp.StatusCode)
			}
			_ = resp.Body.Close()
		}
	}
}

// TestLossy: a store that keeps its contract passes while replies are lost and requests refused.
func TestLossy(t *testing.T) {
	o := &drivertest.Options{LostReplies: 2, Refusals: 2, Log: func(line string) { t.Log(line) }}
	for _, r := range drivertest.Run(t.Context(), harness(nil), o) {
		switch {
		case r.Err != nil:
			t.Errorf("%s (%v): %v\npromised: %s", r.Case.Name, r.Took, r.Err, r.Case.Promise)
		case r.Skipped != "" && r.Case.Name != "session-lowered": // memory has no sessions
			t.Errorf("%s was skipped: %s", r.Case.Name, r.Skipped)
		}
	}
}

// mistakenTable is a table that misinterprets the results of requests.
type mistakenTable struct {
	record.Table
	load func(name string, row record.Row, err error) (record.Row, error)
	swap func(row record.Row, err error) (record.Row, error)
}

func (*mistakenTable) Watcher() record.Watcher { return nil }

func (m *mistakenTable) Load(ctx context.Context, name string) (record.Row, error) {
	row, err := m.Table.Load(ctx, name)
	if m.load != nil {
		return m.load(name, row, err)
	}
	return row, err
}

func (m *mistakenTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	got, err := m.Table.Swap(ctx, row)
	if m.swap != nil {
		return m.swap(got, err)
	}
	return got, err
}

// TestMistakenTables: a table that is wrong only about lost replies or refusals fails, in a case that shows what
// is wrong. The same table passes while nothing is lost.
func TestMistakenTables(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		table mistakenTable
		want  string // part of a failure
	}{
		{"a lost reply counted as a conflict", mistakenTable{swap: func(row record.Row, err error) (record.Row, error) {
			if errors.Is(err, drivertest.ErrLost) {
				err = record.ErrConflict
			}
			return row, err
		}}, "releasing token"},
		{"a lost reply counted as a refusal", mistakenTable{swap: func(row record.Row, err error) (record.Row, error) {
			if errors.Is(err, drivertest.ErrLost) {
				err = driver.ErrDenied
			}
			return row, err
		}}, driver.ErrDenied.Error()},
		{"an error counted as an absent record",
			mistakenTable{load: func(name string, row record.Row, err error) (record.Row,
				error) {
				if err != nil {
					return record.Row{Name: name}, nil
				}
				return row, err
			}}, "there are no claims"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := harnessOf(nil, func(link record.Table) record.Table {
				m := c.table
				m.Table = link
				return &m
			})
			o := &drivertest.Options{Match: isQuickCase, LostReplies: 10, Refusals: 10, Limit: 5 * time.Second,
				Once: true}
			var failures []string
			for _, r := range drivertest.Run(t.Context(), h, o) {
				if r.Err != nil {
					failures = append(failures, fmt.Sprintf("%s: %v", r.Case.Name, r.Err))
				}
			}
			t.Log(strings.Join(failures, "\n"))
			if !slices.ContainsFunc(failures, func(s string) bool { return strings.Contains(s, c.want) }) {
				t.Errorf("no failure contains %q: %q", c.want, failures)
			}
			for _, r := range drivertest.Run(t.Context(), h, &drivertest.Options{Match: isQuickCase}) {
				if r.Err != nil {
					t.Errorf("without lost replies, %s: %v", r.Case.Name, r.Err)
				}
			}
		})
	}
}

// isQuickCase selects cases that make, inspect and release many claims in little time.
func isQuickCase(c drivertest.Case) bool {
	return slices.Contains([]string{"mutex-contended", "fair-contended", "rw-contended", "semaphore-contended", "names",
		"names-that-start-oddly",
		"renew-batch", "list", "revision", "break-stale", "inspect-holders"}, c.Name)
}

// TestLossyHarnessMissing: a run with lost replies fails at once if the harness cannot lose replies.
func TestLossyHarnessMissing(t *testing.T) {
	t.Parallel()
	h := harness(nil)
	h.Lossy = nil
	results := drivertest.Run(t.Context(), h, &drivertest.Options{LostReplies: 2})
	if len(results) != 1 || results[0].Err == nil || !strings.Contains(results[0].Err.Error(), "Harness.Lossy") {
		t.Errorf("%+v", results)
	}
}
