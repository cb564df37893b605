// Evidence writes what proves each promise of GUARANTEES.md. It takes docs/promises.md, which names tests, and adds
// what each of them checks, as its own comment says, and the mutants that it catches.
//
//	go run ./internal/evidence >EVIDENCE.md
//
// In docs/promises.md a promise is a line that begins with "- ". The indented lines below it name its tests and cases
// of the conformance suite.
package main

import (
	"fmt"
	"os"
)

func main() {
	document, err := collectEvidence(".")
	if err != nil {
		fmt.Fprintln(os.Stderr, "evidence:", err)
		os.Exit(1)
	}
	fmt.Print(document)
}

// collectEvidence returns the evidence for the promises of a checkout.
func collectEvidence(root string) (string, error) {
	p, err := collectProofs(root)
	if err != nil {
		return "", err
	}
	promises, err := os.ReadFile(root + "/docs/promises.md")
	if err != nil {
		return "", err
	}
	return writeEvidence(string(promises), p)
}
