// Evidence completes EVIDENCE.md: behind each test, case of the conformance suite and mutant that a promise names, it
// writes what that one checks, as its own comment says.
//
//	go run ./internal/evidence
//
// A promise is a line that begins with "- ", and what proves it are the indented lines below it. To add one, write its
// name, as in "  - `TestName`", and run this program.
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "evidence:", err)
		os.Exit(1)
	}
}

// run rewrites EVIDENCE.md in the root of a checkout.
func run(root string) error {
	p, err := collectProofs(root)
	if err != nil {
		return err
	}
	file := root + "/EVIDENCE.md"
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	completed, err := completeDocument(string(old), p)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(completed), 0o644)
}
