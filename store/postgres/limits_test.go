package postgres_test

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/holdfast-go/holdfast/store/postgres/pgtest"
)

// tpsLine is what pgbench says about its rate.
var tpsLine = regexp.MustCompile(`tps = ([\d.]+) \(without`)

// BenchmarkLimits runs pgbench, which comes with the server: how many transactions the server commits per second that
// update a row of the client's own by a prepared statement, from one client and from 64.
func BenchmarkLimits(b *testing.B) {
	server, err := pgtest.Start("max_connections=100")
	if err != nil {
		b.Fatal(err)
	}
	defer server.Stop()
	if err := server.Exec("create table limits (id int primary key, n bigint) with (fillfactor = 50);" +
		"insert into limits select i, 0 from generate_series(0, 63) i"); err != nil {
		b.Fatal(err)
	}
	script := filepath.Join(b.TempDir(), "script")
	text := "update limits set n = n + 1 where id = :client_id;\n"
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	at, err := url.Parse(server.URL("test"))
	if err != nil {
		b.Fatal(err)
	}
	for _, clients := range []int{1, 64} {
		b.Run(fmt.Sprintf("pgbench/update/%d", clients), func(b *testing.B) {
			args := []string{"-h", at.Hostname(), "-p", at.Port(), "-U", "test", "-n", "-M", "prepared", "-f", script,
				"-c", strconv.Itoa(clients), "-j", strconv.Itoa(min(clients, 2)), "-T", "5", "postgres"}
			for b.Loop() {
				out, err := exec.CommandContext(b.Context(), "pgbench", args...).CombinedOutput()
				m := tpsLine.FindSubmatch(out)
				if err != nil || m == nil {
					b.Fatalf("%v: %s", err, out)
				}
				rate, _ := strconv.ParseFloat(string(m[1]), 64)
				b.ReportMetric(rate, "transactions/s")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
