package dynamodb

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// cliVariable names the AWS command line, which the tests of it need and CI lacks.
const cliVariable = "HOLDFAST_AWS_CLI"

// TestCommandLine: the plain pattern from a shell and ours exclude each other.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	aws := os.Getenv(cliVariable)
	if aws == "" {
		t.Skip("set " + cliVariable + " to the path of the AWS command line")
	}
	table := tableName()
	s := open(t, storeURL(table, server(t).Endpoint, ""))
	put := func(seconds int) bool {
		c := exec.CommandContext(t.Context(), "sh", "-c", fmt.Sprintf(`now=$(date +%%s)
%s dynamodb put-item --endpoint-url %s --region eu-central-1 --table-name %s \
  --item "{\"primary_id\":{\"S\":\"job\"},\"expired_at\":{\"N\":\"$((now + %d))\"}}" \
  --condition-expression 'attribute_not_exists(primary_id) OR expired_at < :timestamp' \
  --expression-attribute-values "{\":timestamp\":{\"N\":\"$now\"}}"`, aws, server(t).Endpoint, table, seconds))
		out, err := c.CombinedOutput()
		if err != nil && !strings.Contains(string(out), "ConditionalCheckFailedException") {
			t.Fatalf("%v: %s", err, out)
		}
		return err == nil
	}
	g := acquire(t, s, mutex("job", time.Minute))
	if put(3) {
		t.Fatal("the command took a lock that is held")
	}
	release(t, s, g.Claim)
	if !put(3) {
		t.Fatal("the command was refused on an idle lock")
	}
	if _, err := s.Acquire(t.Context(), mutex("job", time.Minute)); !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("beside the command: %v", err)
	}
	next := acquire(t, s, waiting(mutex("job", time.Minute)))
	if next.Token <= g.Token {
		t.Errorf("token %d after %d", next.Token, g.Token)
	}
	if put(3) {
		t.Fatal("the command took a lock that is held again")
	}
}
