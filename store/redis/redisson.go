package redis

import (
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

// The layout of Redisson's RLock and RFencedLock: a hash under the lock's key, whose one field names the holder; a
// message "0" on a channel of the lock when it becomes free; and a token beside it, counted up with every grant. Names
// are made as Redisson makes them: prefix:{name}, or prefix:name where the name has a brace already.

const (
	redissonChannel = "redisson_lock__channel"
	redissonTokens  = "redisson_lock_token"
)

var redissonScripts = &layoutScripts{
	acquire:    loadScript("redisson/acquire.lua"),
	release:    loadScript("redisson/release.lua"),
	renew:      loadScript("redisson/renew.lua"),
	breakClaim: loadScript("redisson/break.lua"),
	detach:     loadScript("redisson/detach.lua"),
	inspect:    loadScript("redisson/inspect.lua"),

	keyCount:      2,
	channel:       func(lock string) string { return redissonName(redissonChannel, lock) },
	recordKey:     plainScripts.recordKey,
	tokenKey:      redissonToken,
	recordPattern: plainScripts.recordPattern,
	nameOf:        plainScripts.nameOf,
}

func redissonName(prefix, lock string) string {
	if strings.Contains(lock, "{") {
		return prefix + ":" + lock
	}
	return prefix + ":{" + lock + "}"
}

func redissonToken(lock string) string { return redissonName(redissonTokens, lock) }

// checkRedisson refuses, in a Cluster, names whose token Redisson puts into another slot.
func (s *store) checkRedisson(name string) error {
	lock := s.keys.lockKey(name)
	if s.topology == cluster && hashSlot(lock) != hashSlot(redissonToken(lock)) {
		return fmt.Errorf("%w: in a Cluster Redisson's keys for %q fall into two hash slots; use a name without lone braces", driver.ErrInvalid, name)
	}
	return nil
}
