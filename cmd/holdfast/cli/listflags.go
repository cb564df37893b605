package cli

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
)

// lockOrders are the orders of list --sort. Locks that are equal in one are in the order of their names.
var lockOrders = map[string]func(a, b holdfast.Lock) int{
	"name": func(a, b holdfast.Lock) int { return 0 },
	"holder": func(a, b holdfast.Lock) int {
		return cmp.Compare(firstHolder(a).Owner, firstHolder(b).Owner)
	},
	"since": func(a, b holdfast.Lock) int { // the longest held first
		return compareTimes(firstHolder(a).Since, firstHolder(b).Since)
	},
	"expires": func(a, b holdfast.Lock) int { // the soonest first
		return cmp.Compare(knownOrLast(firstHolder(a).Remaining), knownOrLast(firstHolder(b).Remaining))
	},
	"waiting": func(a, b holdfast.Lock) int { // the most first
		return cmp.Compare(len(b.Waiters), len(a.Waiters))
	},
}

// lockOrderNames are the values of --sort, for the help and the completion.
var lockOrderNames = []string{"name", "holder", "since", "expires", "waiting"}

// lockOrder is the value of --sort.
type lockOrder string

func (o *lockOrder) Type() string   { return "order" }
func (o *lockOrder) String() string { return string(*o) }

func (o *lockOrder) Set(s string) error {
	if lockOrders[s] == nil {
		return errors.New("give " + strings.Join(lockOrderNames, ", "))
	}
	*o = lockOrder(s)
	return nil
}

// sortLocks sorts by an order, and then by name.
func sortLocks(locks []holdfast.Lock, order lockOrder) {
	compare := lockOrders[string(order)]
	slices.SortFunc(locks, func(a, b holdfast.Lock) int {
		return cmp.Or(compare(a, b), cmp.Compare(a.Name, b.Name))
	})
}

// firstHolder is the holder that list names, or the zero value.
func firstHolder(lock holdfast.Lock) holdfast.ClaimInfo {
	if len(lock.Holders) == 0 {
		return holdfast.ClaimInfo{}
	}
	return lock.Holders[0]
}

// compareTimes orders times, those that are not known last.
func compareTimes(a, b time.Time) int {
	switch {
	case a.IsZero() && b.IsZero():
		return 0
	case a.IsZero():
		return 1
	case b.IsZero():
		return -1
	}
	return a.Compare(b)
}

// knownOrLast makes a time that is not known larger than all others.
func knownOrLast(d time.Duration) time.Duration {
	if d <= 0 {
		return time.Duration(1<<63 - 1)
	}
	return d
}
