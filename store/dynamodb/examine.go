package dynamodb

import (
	"context"

	"github.com/holdfast-go/holdfast/driver"
)

var findingForeignWatch = driver.Finding{Code: "dynamodb-foreign-watch", Severity: driver.SeverityWarning,
	What: "foreign-watch is not set",
	Why: "a foreign holder counts as dead when a client has seen it unchanged for its lease: after one has died, " +
		"callers that only try (run -n) are refused for ever, until a client waits for as long",
	Fix: "set foreign-watch to the longest lease for which they may watch it, too"}

// Examine says which callers may be refused for ever.
func (a *awslockStore) Examine(context.Context) ([]driver.Finding, error) {
	if a.maxForeignWatch > 0 {
		return nil, nil
	}
	return []driver.Finding{findingForeignWatch}, nil
}
