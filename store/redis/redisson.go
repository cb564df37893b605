package redis

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

// The layout of Redisson's RLock and RFencedLock: a hash under the lock's key, whose one field names the holder; a message
// "0" on a channel of the lock when it becomes free; and a token beside it, counted up with every grant. Names are made as
// Redisson makes them: prefix:{name}, or prefix:name where the name has a brace already.

var (
	//go:embed scripts/redisson/try.lua
	redissonTry string
	//go:embed scripts/redisson/free.lua
	redissonFree string
	//go:embed scripts/redisson/renew.lua
	redissonRenew string
	//go:embed scripts/redisson/break.lua
	redissonBreak string
	//go:embed scripts/redisson/detach.lua
	redissonDetach string
	//go:embed scripts/redisson/show.lua
	redissonShow string
)

const (
	redissonChannel = "redisson_lock__channel"
	redissonTokens  = "redisson_lock_token"
)

var redisson = &steps{
	try: newStep(foreignText + redissonTry), free: newStep(redissonFree), renew: newStep(redissonRenew),
	breaks: newStep(notes + foreignText + redissonBreak), detach: newStep(redissonDetach), show: newStep(foreignText + redissonShow),
	reach:   2,
	tells:   func(lock string) string { return redissonName(redissonChannel, lock) },
	record:  native.record,
	token:   redissonToken,
	records: native.records,
	nameOf:  native.nameOf,
}

func redissonName(prefix, lock string) string {
	if strings.Contains(lock, "{") {
		return prefix + ":" + lock
	}
	return prefix + ":{" + lock + "}"
}

func redissonToken(lock string) string { return redissonName(redissonTokens, lock) }

// checkRedisson refuses, in a Cluster, names whose token Redisson puts into another slot.
func (s *Store) checkRedisson(name string) error {
	lock := s.keys.lock(name)
	if s.top == cluster && slot(lock) != slot(redissonToken(lock)) {
		return fmt.Errorf("%w: in a Cluster Redisson's keys for %q fall into two hash slots; use a name without lone braces", driver.ErrInvalid, name)
	}
	return nil
}
