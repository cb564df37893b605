package tabletest

import (
	"fmt"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/engine/record"
)

// openLossy opens a client, and returns the fate of its requests, which the caller can set. It applies to every attempt
// of a request.
func (e *caseEnv) openLossy() (record.Table, *atomic.Int64, error) {
	if e.h.Lossy == nil {
		return nil, nil, skipped("needs Harness.Lossy")
	}
	var fate atomic.Int64
	t, err := e.h.Lossy(e.ctx, func() drivertest.Fate { return drivertest.Fate(fate.Load()) })
	if err != nil {
		return nil, nil, fmt.Errorf("opening a client: %w", markUnanswered(err))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tables = append(e.tables, t)
	return t, &fate, nil
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
		if !isUnknownOutcome(err) {
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
