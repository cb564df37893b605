package redis

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/store/redis/redistest"
)

// BenchmarkLimits runs redis-benchmark, which comes with the server: how many requests the server takes per second,
// from one client and from 64. "set" is the least write, and "script" is that write in a script.
func BenchmarkLimits(b *testing.B) {
	server, err := redistest.Start()
	if err != nil {
		b.Fatal(err)
	}
	defer server.Stop()
	for _, clients := range []int{1, 64} {
		for _, request := range []struct {
			name  string
			words []string
		}{
			{"set", []string{"set", "key:__rand_int__", "value"}},
			{"script", []string{"eval", "return redis.call('set', KEYS[1], ARGV[1])", "1", "key:__rand_int__", "value"}},
		} {
			b.Run(fmt.Sprintf("redis-benchmark/%s/%d", request.name, clients), func(b *testing.B) {
				args := append([]string{"-h", "127.0.0.1", "-p", server.Port, "-c", strconv.Itoa(clients),
					"-n", strconv.Itoa(30_000 + 3_000*clients), "-r", "64", "--csv"}, request.words...)
				for b.Loop() {
					out, err := exec.CommandContext(b.Context(), "redis-benchmark", args...).CombinedOutput()
					if err != nil {
						b.Fatalf("%v: %s", err, out)
					}
					b.ReportMetric(lastRate(b, string(out)), "requests/s")
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// lastRate reads the rate in the last line: the name of the test, the rate, and more, each in quotes.
func lastRate(b *testing.B, csv string) float64 {
	lines := strings.Split(strings.TrimSpace(csv), "\n")
	cells := strings.Split(lines[len(lines)-1], `","`)
	if len(cells) < 2 {
		b.Fatalf("redis-benchmark says %q", csv)
	}
	rate, err := strconv.ParseFloat(strings.Trim(cells[1], `"`), 64)
	if err != nil {
		b.Fatal(err)
	}
	return rate
}
