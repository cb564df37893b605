package redis

import (
	"strconv"
	"sync"
)

// slotCount is how many hash slots a Cluster has.
const slotCount = 16384

// hashSlot is the hash slot of a key.
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

// slotTags is, for each slot, a short text that falls into it.
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

func tagForSlot(slot uint16) string { return slotTags()[slot] }
