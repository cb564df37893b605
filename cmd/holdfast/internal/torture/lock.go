package torture

import (
	"fmt"

	"github.com/holdfast-go/holdfast"
)

// Kind is a kind of lock that workers contend for.
type Kind string

// The kinds of locks.
const (
	Mutex     Kind = "mutex"
	Fair      Kind = "fair" // a mutex that is granted in order of arrival
	RW        Kind = "rw"
	Semaphore Kind = "semaphore"
	Ledger    Kind = "ledger" // keys of a run ledger, one after the other
)

// Kinds are all kinds of locks.
var Kinds = []Kind{Mutex, Fair, RW, Semaphore, Ledger}

// Lock is one lock that all workers contend for.
type Lock struct {
	Kind  Kind
	Name  string
	Limit int64 // how much weight may be held at once
}

// rwLimit is the weight of a writer. A reader weighs 1.
const rwLimit = 1 << 20

// semaphoreLimit is small, so that workers wait for each other.
const semaphoreLimit = 3

// newLocks are the locks of a run: one per kind, and a second mutex, so that workers hold several locks at once.
func newLocks(prefix string, kinds []Kind) (all []Lock) {
	for _, k := range kinds {
		count, limit := 1, int64(1)
		switch k {
		case Mutex:
			count = 2
		case RW:
			limit = rwLimit
		case Semaphore:
			limit = semaphoreLimit
		}
		for i := range count {
			all = append(all, Lock{Kind: k, Name: fmt.Sprintf("%s-%s-%d", prefix, k, i+1), Limit: limit})
		}
	}
	return all
}

// Carries reports whether the store can have a kind of lock, as far as it says so before it is asked.
func Carries(info holdfast.Info, k Kind) bool {
	want := map[Kind]holdfast.Kind{RW: holdfast.KindRW, Semaphore: holdfast.KindSemaphore}[k]
	if k == Fair {
		return info.MaxWaiters > 0 && info.Order != holdfast.OrderNone
	}
	if want == "" {
		return true
	}
	for _, has := range info.Kinds {
		if has == want {
			return true
		}
	}
	return false
}
