// Command buildconsul builds the server that the tests run on, so that they need not do it while they measure time. It
// takes minutes for the first time, and nothing later.
package main

import (
	"log"

	"github.com/holdfast-go/holdfast/store/consul/consultest"
)

func main() {
	if _, err := consultest.Tool(); err != nil {
		log.Fatal(err)
	}
}
