package cli

import (
	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/waiters"
)

func seesAllWaiters(info holdfast.Info, lock holdfast.Lock) bool { return waiters.AllSeen(info, lock) }
func countWaiters(info holdfast.Info, lock holdfast.Lock) string { return waiters.Count(info, lock) }
