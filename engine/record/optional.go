package record

import (
	"context"
	"os"

	"github.com/holdfast-go/holdfast/driver"
)

// Heirloom passes on what the table offers.
func (e *engine) Heirloom() (*os.File, error) {
	h, ok := e.table.(Heritable)
	if !ok {
		return nil, driver.ErrUnsupported
	}
	f, err := h.Heirloom()
	return f, e.fault(err)
}

// Explain: the TTL is kept as it is.
func (e *engine) Explain(c driver.Claim) driver.Plan {
	plan := driver.Plan{TTL: c.TTL}
	if t, ok := e.table.(Located); ok {
		plan.Keys = t.Keys(c.Name)
	}
	return plan
}

// Warnings passes on what the table warns of.
func (e *engine) Warnings(ctx context.Context) ([]string, error) {
	w, ok := e.table.(driver.Warner)
	if !ok {
		return nil, nil
	}
	ws, err := w.Warnings(ctx)
	return ws, e.fault(err)
}
