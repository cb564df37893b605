package record

import (
	"fmt"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// choosePermits returns the numbers of the permits of a claim that is granted now: the smallest that no holder has.
// They are chosen in the swap that grants the claim, so the record shows all numbers that are in use.
//
// A client of an earlier version writes the record without the numbers that it does not know. Then a holder may believe
// in numbers that the record does not show. So no claim gets numbers while there is a holder without any. Such a holder
// does not get them back: its client may have been told of none.
//
// Heavy claims have no numbers, so that a record needs no memory in proportion to the limit. As the others take the
// smallest ones, the numbers stay below the weight of all holders that have some.
func (r *Record) choosePermits(c *Claim) string {
	if r.Kind != driver.KindSemaphore || c.Weight > driver.MaxPermits {
		return ""
	}
	taken := map[int64]bool{}
	for i := range r.Claims {
		h := &r.Claims[i]
		switch {
		case h.State != Granted:
		case h.Permits == "" && h.Weight <= driver.MaxPermits:
			return ""
		default:
			for _, n := range driverutil.ParsePermits(h.Permits) {
				taken[n] = true
			}
		}
	}
	numbers := make([]int64, 0, c.Weight)
	for n := int64(0); int64(len(numbers)) < c.Weight; n++ {
		if !taken[n] {
			numbers = append(numbers, n)
		}
	}
	return driverutil.FormatPermits(numbers)
}

// checkPermits reports a number that two holders have, or that is none of the lock's.
func (r *Record) checkPermits() error {
	var taken map[int64]bool
	for i := range r.Claims {
		c := &r.Claims[i]
		if c.Permits == "" || c.State != Granted {
			continue
		}
		numbers := driverutil.ParsePermits(c.Permits)
		if numbers == nil || numbers[len(numbers)-1] >= r.Limit {
			return fmt.Errorf("claim %s has the permits %q of %d", c.ID, c.Permits, r.Limit)
		}
		if taken == nil {
			taken = make(map[int64]bool, len(r.Claims))
		}
		for _, n := range numbers {
			if taken[n] {
				return fmt.Errorf("claim %s has the permit %d, which another one has", c.ID, n)
			}
			taken[n] = true
		}
	}
	return nil
}

// permitReserve is by how many bytes the claims can grow that have no numbers yet. No number has more than five digits,
// as there are at most MaxHolders holders with MaxPermits each.
func (r *Record) permitReserve() (bytes int) {
	if r.Kind != driver.KindSemaphore {
		return 0
	}
	for i := range r.Claims {
		if c := &r.Claims[i]; c.State != Granted && c.Weight <= driver.MaxPermits {
			bytes += len(`,"permits":""`) + len("12345,")*int(c.Weight)
		}
	}
	return bytes
}
