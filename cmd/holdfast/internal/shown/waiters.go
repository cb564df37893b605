package shown

import (
	"fmt"

	"github.com/holdfast-go/holdfast"
)

// AllWaiters reports whether all claims that wait for a lock are in the store, where others see them. Claims on a plain
// mutex wait in their own processes, on most stores; and so do those that find the queue full.
func AllWaiters(info holdfast.Info, lock holdfast.Lock) bool {
	if info.MaxWaiters > 0 && len(lock.Waiters) >= info.MaxWaiters {
		return false
	}
	switch lock.Kind {
	case holdfast.KindRW, holdfast.KindSemaphore:
		return true
	case holdfast.KindMutex:
		return info.NativeQueue && info.MaxWaiters > 0
	}
	return true // nobody holds it, so nobody has to wait
}

// CountWaiters is how many claims wait: a number; N+ if there may be others; or - if none is seen, but some may wait.
func CountWaiters(info holdfast.Info, lock holdfast.Lock) string {
	n := len(lock.Waiters)
	switch {
	case AllWaiters(info, lock):
		return fmt.Sprint(n)
	case n == 0:
		return "-"
	}
	return fmt.Sprintf("%d+", n)
}
