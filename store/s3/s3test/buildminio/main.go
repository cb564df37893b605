// Command buildminio builds the server that the tests run on, so that they need not do it while they measure time. It
// takes minutes for the first time, and nothing later.
package main

import (
	"log"

	"github.com/holdfast-go/holdfast/store/s3/s3test"
)

func main() {
	if err := s3test.BuildMinIO(); err != nil {
		log.Fatal(err)
	}
}
