// Command buildprevious builds the version before this one, so that the tests that run it need not do it while they
// measure time.
package main

import (
	"log"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/previous"
)

func main() {
	if _, err := previous.Build(); err != nil {
		log.Fatal(err)
	}
}
