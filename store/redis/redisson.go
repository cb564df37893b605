package redis

import (
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

// The layout of Redisson's RLock and RFencedLock has these parts: a hash under the lock's key, whose one field names
// the holder; a message "0" on a channel of the lock when it becomes free; and a key with the token, which counts the
// grants. The names are made as Redisson makes them: prefix:{name}, or prefix:name if the name has a brace already.

const (
	redissonChannel = "redisson_lock__channel"
	redissonTokens  = "redisson_lock_token"
)

// redissonScripts has no scripts for queues and shared locks. Our record is kept next to Redisson's keys, for the
// description of the holder and for notes of broken claims. Redisson ignores it.
var redissonScripts = &layoutScripts{
	acquire:    loadScript("redisson/acquire.lua"),
	release:    loadScript("redisson/release.lua"),
	renew:      loadScript("redisson/renew.lua"),
	breakClaim: loadScript("redisson/break.lua"),
	detach:     loadScript("redisson/detach.lua"),
	inspect:    loadScript("redisson/inspect.lua"),
	raiseToken: loadScript("redisson/raise_token.lua"),

	keyCount:      2,
	channel:       func(lock string) string { return redissonName(redissonChannel, lock) },
	recordKey:     plainScripts.recordKey,
	tokenKey:      redissonToken,
	recordPattern: plainScripts.recordPattern,
	nameOf:        plainScripts.nameOf,
}

// redissonName makes a key or channel as Redisson does.
func redissonName(prefix, lock string) string {
	if strings.Contains(lock, "{") {
		return prefix + ":" + lock
	}
	return prefix + ":{" + lock + "}"
}

func redissonToken(lock string) string { return redissonName(redissonTokens, lock) }

// checkRedisson refuses names whose token key Redisson puts into another hash slot than the lock. In a Cluster no
// script could use both. Redisson takes any brace in a name for a hash tag.
func (s *store) checkRedisson(name string) error {
	lock := s.keys.lockKey(name)
	if s.topology == cluster && hashSlot(lock) != hashSlot(redissonToken(lock)) {
		return fmt.Errorf("%w: in a Cluster Redisson's keys for %q fall into two hash slots; use a name without lone braces", driver.ErrInvalid, name)
	}
	return nil
}
