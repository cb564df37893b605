package sequence

import (
	"context"

	"github.com/holdfast-go/holdfast/driver"
)

// queueEndingLocked queues an ending for NextEnding. It is called with mu held.
func (e *Engine) queueEndingLocked(end driver.Ending) {
	if len(e.endings) >= maxEndings {
		e.endings = e.endings[1:]
	}
	e.endings = append(e.endings, end)
	wakeOne(e.endingQueued)
}

// NextEnding waits for the next claim of this client that was lost, or whose release was requested: the store ended its
// session, its node was removed, or its node was marked.
func (e *Engine) NextEnding(ctx context.Context) (driver.Ending, error) {
	for {
		if ctx.Err() != nil || e.life.Err() != nil {
			return driver.Ending{}, e.contextError(ctx)
		}
		e.mu.Lock()
		if len(e.endings) > 0 {
			end := e.endings[0]
			e.endings = e.endings[1:]
			if len(e.endings) > 0 {
				wakeOne(e.endingQueued) // for another caller
			}
			e.mu.Unlock()
			return end, nil
		}
		e.mu.Unlock()
		select {
		case <-e.endingQueued:
		case <-ctx.Done():
		case <-e.life.Done():
		}
	}
}
