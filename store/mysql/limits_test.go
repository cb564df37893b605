package mysql_test

import (
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	"github.com/holdfast-go/holdfast/store/mysql/mysqltest"
)

// averageLine is what mysqlslap says about its time.
var averageLine = regexp.MustCompile(`Average number of seconds to run all queries: ([\d.]+)`)

// BenchmarkLimits runs mysqlslap, which comes with the server: how many updates of a row of the client's own the server
// commits per second, from one client and from 64. The server flushes each commit.
func BenchmarkLimits(b *testing.B) {
	server, err := mysqltest.Start("innodb-flush-log-at-trx-commit=1")
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	if err := server.Exec("create table shop.limits (id int primary key, n bigint) " +
		"select seq as id, 0 as n from shop.seq_1_to_64"); err != nil {
		b.Fatal(err)
	}
	host, port, err := net.SplitHostPort(server.Endpoint)
	if err != nil {
		b.Fatal(err)
	}
	for _, clients := range []int{1, 64} {
		b.Run(fmt.Sprintf("mysqlslap/update/%d", clients), func(b *testing.B) {
			updates := 3_000 + 300*clients
			args := []string{"--no-defaults", "--protocol=tcp", "-h", host, "-P", port, "-u", "root",
				"--create-schema=" + mysqltest.Database, "--concurrency=" + strconv.Itoa(clients),
				"--number-of-queries=" + strconv.Itoa(updates),
				"--query=update limits set n = n + 1 where id = 1 + connection_id() % 64"}
			for b.Loop() {
				out, err := exec.CommandContext(b.Context(), "mysqlslap", args...).CombinedOutput()
				m := averageLine.FindSubmatch(out)
				if err != nil || m == nil {
					b.Fatalf("%v: %s", err, out)
				}
				seconds, _ := strconv.ParseFloat(string(m[1]), 64)
				b.ReportMetric(float64(updates)/seconds, "updates/s")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
