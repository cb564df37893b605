package record_test

import (
	"crypto/rand"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/engine/record"
)

// BenchmarkDecode: the record of a lock that one claim holds, and of one with a full queue.
func BenchmarkDecode(b *testing.B) {
	for _, claims := range []int{1, 64} {
		b.Run(fmt.Sprint("claims-", claims), func(b *testing.B) {
			now := time.Now().UnixMicro()
			r := &record.Record{Kind: driver.KindMutex, Limit: 1, Token: now}
			for i := range claims {
				c := record.Claim{
					ID: rand.Text(), Session: rand.Text(), Owner: "worker@app1.example.com:4711", Weight: 1, TTL: 30 * time.Second,
					State: record.Waiting, Beat: now, SilenceLimit: 30 * time.Second, ExpiresAt: now, Since: now,
				}
				if i == 0 {
					c.State, c.Token = record.Granted, now
				}
				r.Claims = append(r.Claims, c)
			}
			data, err := record.Encode(r)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := record.Decode("lock", data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
