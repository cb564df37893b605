package redis

import (
	"strconv"
	"sync"
)

// slots is how many hash slots a Cluster has.
const slots = 16384

// slot is the hash slot of a key.
func slot(key string) uint16 {
	var crc uint16 // CRC16/XMODEM
	for _, b := range []byte(tag(key)) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % slots
}

// tags is, for each slot, a short text that falls into it.
var tags = sync.OnceValue(func() []string {
	found, left := make([]string, slots), slots
	for i := 0; left > 0; i++ {
		t := strconv.FormatInt(int64(i), 36)
		if s := slot(t); found[s] == "" {
			found[s] = t
			left--
		}
	}
	return found
})

func tagOf(slot uint16) string { return tags()[slot] }
