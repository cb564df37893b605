package record

import (
	"context"
	"os"

	"github.com/holdfast-go/holdfast/driver"
)

// LivenessFile passes on what the table offers.
func (e *engine) LivenessFile() (*os.File, error) {
	h, ok := e.table.(LivenessFiler)
	if !ok {
		return nil, driver.ErrUnsupported
	}
	f, err := h.LivenessFile()
	return f, e.fault(err)
}

// Explain: the TTL is kept as it is.
func (e *engine) Explain(c driver.Claim) driver.Plan {
	plan := driver.Plan{TTL: c.TTL}
	if t, ok := e.table.(KeyLister); ok {
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
