package redis

import (
	"strconv"
	"sync"
)

// slotCount is the number of hash slots of a Cluster (redis.io: "Redis cluster specification").
const slotCount = 16384

// hashSlot returns the hash slot of a key: the CRC16 of its hash tag, modulo the number of slots.
func hashSlot(key string) uint16 {
	var crc uint16 // CRC16/XMODEM
	for _, b := range []byte(hashTag(key)) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % slotCount
}

// slotTags has a short text for each slot that falls into it. It is computed when it is first needed, which takes some
// milliseconds: only keys with unmatched braces need it.
var slotTags = sync.OnceValue(func() []string {
	found, left := make([]string, slotCount), slotCount
	for i := 0; left > 0; i++ {
		t := strconv.FormatInt(int64(i), 36)
		if s := hashSlot(t); found[s] == "" {
			found[s] = t
			left--
		}
	}
	return found
})

// tagForSlot returns a hash tag that puts a key into the slot. It never changes for a slot: keys in servers are built
// from it.
func tagForSlot(slot uint16) string { return slotTags()[slot] }
