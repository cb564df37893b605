package postgres

import (
	"flag"
	"testing"

	"github.com/holdfast-go/holdfast/internal/storetest"
)

// maven runs the test with the real ShedLock. CI has no Maven.
var maven = flag.Bool("maven", false, "test with the real ShedLock, which Maven fetches")

// TestShedLockItself: the real ShedLock, in a process of its own, and our clients exclude each other, and both
// make progress. Each increments a number in a file in two steps, and none sees the state between them.
func TestShedLockItself(t *testing.T) {
	if !*maven {
		t.Skip("run it with -maven, where Maven is")
	}
	rounds := 50
	if *prove {
		rounds = 1000
	}
	server, s, _ := startShedLock(t, 0)
	storetest.ContendWithShedLockItself(t, s, rounds, "testdata/pom.xml",
		"jdbc:postgresql://"+server.Addr+"/postgres?user=test")
}
