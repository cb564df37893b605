// Buildserver builds the Consul server that the tests run, if that was not done before, and prints its path. It takes
// minutes, so it is done before the tests.
package main

import (
	"fmt"
	"os"

	"github.com/holdfast-go/holdfast/store/consul/consultest"
)

func main() {
	path, err := consultest.Tool()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(path)
}
