// Command buildtools builds the server that the tests run on, and a client of it, so that they need not do it while
// they measure time. It takes minutes for the first time, and nothing later.
package main

import (
	"log"

	"github.com/holdfast-go/holdfast/store/kubernetes/kubernetestest"
)

func main() {
	for _, build := range []func() (string, error){kubernetestest.Server, kubernetestest.Elector} {
		if _, err := build(); err != nil {
			log.Fatal(err)
		}
	}
}
