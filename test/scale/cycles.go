package main

import (
	"context"
	"fmt"
	"time"
)

// measuredCycles is how many cycles are measured, after all others.
const measuredCycles = 1000

// measureCycles measures how long it takes to take a lock and to release it, when it was taken so often before.
func measureCycles(ctx context.Context, s store) error {
	t := newTable(fmt.Sprintf("cycles of one lock, of which the last %d are measured", measuredCycles), "cycles",
		"ms per cycle", "requests per cycle")
	defer t.end(s.name)
	return forSizes(ctx, s, *cycles, func(n int, at *server) error { return cycle(ctx, s, at, n, t) })
}

func cycle(ctx context.Context, s store, at *server, n int, t *table) error {
	ws, err := startClient(ctx, at)
	if err != nil {
		return err
	}
	defer ws.kill()
	w := ws[0]
	var took time.Duration
	if err := w.call("Cycle", max(0, n-measuredCycles), &took); err != nil {
		return err
	}
	sent, err := at.countDuring(ctx, ws, func() error { return w.call("Cycle", measuredCycles, &took) })
	if err != nil {
		return err
	}
	t.add(withCommas(int64(n)), perUnit(float64(took.Microseconds())/1000, measuredCycles), sent.per(measuredCycles))
	return s.closeClients(ws)
}
