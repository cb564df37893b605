package dynamodb

import (
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
)

// cliVariable is the environment variable that names the AWS command line. CI does not have it.
const cliVariable = "HOLDFAST_AWS_CLI"

// commandLine returns the common lock pattern as people write it in a shell: it tries to take the lock job for
// some seconds.
func commandLine(t *testing.T, table string) func(seconds int) bool {
	t.Helper()
	aws := os.Getenv(cliVariable)
	if aws == "" {
		t.Skip("set " + cliVariable + " to the path of the AWS command line")
	}
	return func(seconds int) bool {
		c := exec.CommandContext(t.Context(), "sh", "-c", fmt.Sprintf(`now=$(date +%%s)
%s dynamodb put-item --endpoint-url %s --region eu-central-1 --table-name %s \
  --item "{\"primary_id\":{\"S\":\"job\"},\"expired_at\":{\"N\":\"$((now + %d))\"}}" \
  --condition-expression 'attribute_not_exists(primary_id) OR expired_at < :timestamp' \
  --expression-attribute-values "{\":timestamp\":{\"N\":\"$now\"}}"`, aws, sharedServer(t).Endpoint, table, seconds))
		out, err := c.CombinedOutput()
		if err != nil && !strings.Contains(string(out), "ConditionalCheckFailedException") {
			t.Errorf("%v: %s", err, out)
		}
		return err == nil
	}
}

// TestCommandLine: the common pattern in a shell and our clients exclude each other.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	table := newTableName()
	put := commandLine(t, table)
	s := mustOpen(t, urlOf(table, sharedServer(t).Endpoint, ""))
	g := acquire(t, s, mutexClaim("job", time.Minute))
	if put(3) {
		t.Fatal("the command took a lock that is held")
	}
	release(t, s, g.Claim)
	if !put(3) {
		t.Fatal("the command was refused on an idle lock")
	}
	if _, err := s.Acquire(t.Context(), mutexClaim("job", time.Minute)); !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("next to the command: %v", err)
	}
	next := acquire(t, s, waitingClaim(mutexClaim("job", time.Minute)))
	if next.Token <= g.Token {
		t.Errorf("token %d after %d", next.Token, g.Token)
	}
	if put(3) {
		t.Fatal("the command took a lock that is held again")
	}
}

// TestCommandLineContended: when the command and our client want a free lock at about the same time, exactly one
// gets it, in every round.
func TestCommandLineContended(t *testing.T) {
	t.Parallel()
	rounds := 10
	if *prove {
		rounds = 100
	}
	table, client := newTableName(), dynamodbtest.Client(sharedServer(t).Endpoint)
	put := commandLine(t, table)
	s := mustOpen(t, urlOf(table, sharedServer(t).Endpoint, ""))
	from := time.Now()
	put(60)
	usual := time.Since(from) // the command starts slowly
	deleteItem(t, client, table, "job")
	ours, tried := 0, 0
	// Our delay follows the outcomes, so that both win some rounds even if the first start was much slower than the
	// others.
	for ; tried < rounds || (ours == 0 || ours == tried) && tried < 5*rounds; tried++ {
		var theirs bool
		var wg sync.WaitGroup
		wg.Go(func() { theirs = put(600) })
		time.Sleep(usual/2 + mrand.N(usual))
		c := mutexClaim("job", time.Minute)
		_, err := s.Acquire(t.Context(), c)
		wg.Wait()
		if err != nil && !errors.Is(err, driver.ErrHeld) || (err == nil) == theirs {
			t.Fatalf("round %d: the command took the lock: %v, and we: %v", tried, theirs, err)
		}
		if err == nil {
			ours++
			usual = usual * 5 / 4
			release(t, s, c)
		} else {
			usual = usual * 4 / 5
			deleteItem(t, client, table, "job")
		}
	}
	t.Logf("%d rounds, %d to ours, %d to the command, never two", tried, ours, tried-ours)
	if ours == 0 || ours == tried {
		t.Error("one of the two has won all rounds: nothing was shown")
	}
}
