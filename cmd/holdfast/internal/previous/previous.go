// Package previous builds the command of the version before this one. Tests run it next to the present one, because an
// upgrade takes time: for a while programs of both versions use the same locks and ledgers.
package previous

import "github.com/holdfast-go/holdfast/driver/drivertest/servertest"

// Commit is the version before this one: the last release or, before the first one, a commit of main that others may
// still run. docs/releasing.md says when it changes.
const Commit = "95f0a089d894faac7c2cd76bbd21329b32ad1574"

// Build builds the command as it was at Commit, if that was not done before, and returns the path of the program. It is
// built as make build does, so most of what it consists of is in Go's cache.
func Build() (string, error) {
	return servertest.BuildCommit(Commit, "holdfast", []string{"CGO_ENABLED=0", "GOWORK=",
		"GOFLAGS=-tags=grpcnotrace,disable_grpc_modules"}, "-ldflags=-s -w", "./cmd/holdfast")
}
