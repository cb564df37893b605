package main

import (
	"context"
	"fmt"
	"time"
)

// heldTTL is the TTL of the leases that are held, unless it must be longer for the store to bear the renewals.
const heldTTL = 30 * time.Second

// measureHeld measures what leases cost that one process holds.
func measureHeld(ctx context.Context, s store) error {
	t := newTable("held leases of one process", "leases", "TTL", "s to take", "resident B each", "heap B each",
		"goroutines", "requests/s idle", "requests/renewal", "held at the end")
	defer t.end(s.name)
	return forSizes(ctx, s, *leases, func(n int, at *server) error { return holdMany(ctx, s, at, n, t) })
}

func holdMany(ctx context.Context, s store, at *server, n int, t *table) error {
	ws, err := startClient(ctx, at)
	if err != nil {
		return err
	}
	defer ws.kill()
	w := ws[0]
	before, err := w.usage(true)
	if err != nil {
		return err
	}
	ttl := s.chooseTTL(n)
	var held HoldReply
	if err := w.call("Hold", HoldArgs{n, ttl, *limit}, &held); err != nil {
		return err
	}
	if held.Failures > 0 {
		fmt.Printf("%d attempts to take a lease have failed; the last one: %s\n", held.Failures, held.LastErr)
	}
	if held.Taken == 0 {
		return fmt.Errorf("no lease was taken in %v", held.Took)
	}
	// Leases that were taken quickly are renewed together. The measurement begins and ends between two such times.
	if err := sleep(ctx, ttl/6); err != nil {
		return err
	}
	window := time.Duration(*intervals) * ttl / 3
	sent, err := at.countDuring(ctx, ws, func() error { return sleep(ctx, window) })
	if err != nil {
		return err
	}
	now, err := w.usage(false)
	if err != nil {
		return err
	}
	var valid int
	if err := w.call("CountValid", struct{}{}, &valid); err != nil {
		return err
	}
	more, each := now.since(before), float64(held.Taken)
	t.add(withCommas(int64(held.Taken)), ttl.String(), perUnit(held.Took.Seconds(), 1),
		perUnit(float64(more.Resident), each), perUnit(float64(more.Heap), each), fmt.Sprint(now.Goroutines),
		sent.per(window.Seconds()), sent.per(each*float64(*intervals)), describeHeld(valid, held.Taken, n))
	return s.closeClients(ws)
}

// chooseTTL chooses the TTL so that no more renewals are due than the store is asked for.
func (s *store) chooseTTL(n int) time.Duration {
	most := s.maxRenewals
	if *renewals > 0 {
		most = *renewals
	}
	if most == 0 {
		return heldTTL
	}
	return max(heldTTL, time.Duration(3*n/most)*time.Second)
}

// describeHeld says what became of the leases: wanted, taken, and still valid at the end.
func describeHeld(valid, taken, wanted int) string {
	switch {
	case valid < taken:
		return fmt.Sprintf("%d lost", taken-valid)
	case taken < wanted:
		return fmt.Sprintf("all of %s", withCommas(int64(taken)))
	}
	return "all"
}
