package tabletest

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/record"
)

// openLossy opens a client, and returns the fate of its requests, which the caller can set. It applies to every attempt
// of a request.
func (e *caseEnv) openLossy() (record.Table, *atomic.Int64, error) {
	var fate atomic.Int64
	t, err := e.openWithFates(func() drivertest.Fate { return drivertest.Fate(fate.Load()) })
	return t, &fate, err
}

func (e *caseEnv) openWithFates(fate func() drivertest.Fate) (record.Table, error) {
	if e.h.Lossy == nil {
		return nil, skipped("needs Harness.Lossy")
	}
	t, err := e.h.Lossy(e.ctx, fate)
	if err != nil {
		return nil, fmt.Errorf("opening a client: %w", markUnanswered(err))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tables = append(e.tables, t)
	return t, nil
}

func checkLostReply(e *caseEnv) error {
	t, fate, err := e.openLossy()
	if err != nil {
		return err
	}
	for round := range 3 {
		name := e.recordName(fmt.Sprint(round))
		now := record.Row{Name: name}
		if round > 0 {
			if now, err = writeRow(e, t, newRow(name, "", baseToken)); err != nil {
				return err
			}
		}
		fate.Store(int64(drivertest.LoseReply))
		what := "Swap"
		if round == 2 {
			what = "Delete"
			err = t.Delete(e.ctx, now)
		} else {
			_, err = t.Swap(e.ctx, newRow(name, now.Version, baseToken+1))
		}
		fate.Store(int64(drivertest.Pass))
		if !isUnknownOutcome(err) || errors.Is(err, record.ErrUnsent) {
			return fmt.Errorf("a %s took effect and its reply was lost, but it returned: %v", what, err)
		}
	}
	return nil
}

func checkLostRequest(e *caseEnv) error {
	return e.checkFailingRequests(drivertest.LoseRequest, "never arrived")
}

func checkRefusedRequest(e *caseEnv) error {
	return e.checkFailingRequests(drivertest.Refuse, "was refused for now")
}

// checkFailingRequests calls every method with a fate that prevents its request from taking effect.
func (e *caseEnv) checkFailingRequests(f drivertest.Fate, what string) error {
	t, fate, err := e.openLossy()
	if err != nil {
		return err
	}
	now, err := writeRow(e, t, newRow(e.recordName("m"), "", baseToken))
	if err != nil {
		return err
	}
	now.Data, _ = idleData(baseToken)
	fate.Store(int64(f))
	err = callEach(e, t, e.ctx, now, func(method string, err error) error {
		if !isUnknownOutcome(err) {
			return fmt.Errorf("a %s whose request %s returned: %v", method, what, err)
		}
		return nil
	})
	fate.Store(int64(drivertest.Pass))
	if err != nil {
		return err
	}
	return expectRow(e, t, now)
}

// checkLostList lists some records again and again. Each time another one of its requests is refused.
func checkLostList(e *caseEnv) error {
	const records, lists = 5, 8
	var requests, refused atomic.Int64 // refused is the number of the request that is refused; 0: none
	t, err := e.openWithFates(func() drivertest.Fate {
		if requests.Add(1) == refused.Load() {
			return drivertest.Refuse
		}
		return drivertest.Pass
	})
	if err != nil {
		return err
	}
	for i := range records {
		if _, err := writeRow(e, t, newRow(e.recordName(fmt.Sprint(i)), "", baseToken)); err != nil {
			return err
		}
	}
	for n := range int64(lists) {
		refused.Store(requests.Load() + 1 + n)
		found, failed := map[string]bool{}, false
		for row, err := range t.List(e.ctx, e.prefix, "") {
			found[row.Name], failed = true, failed || err != nil
		}
		if refused.Store(0); !failed && len(found) != records {
			return fmt.Errorf("a List whose request %d was refused yields no error, and %d of %d records", n+1, len(found),
				records)
		}
	}
	return nil
}
