// Command nats-server is the NATS server, built from its module at the version that go.mod names: what the tests run
// against. Its argument is a configuration file.
package main

import (
	"fmt"
	"os"

	"github.com/nats-io/nats-server/v2/server"
)

func main() {
	if len(os.Args) != 2 {
		fail("usage: nats-server FILE")
	}
	opts, err := server.ProcessConfigFile(os.Args[1])
	if err != nil {
		fail(err)
	}
	s, err := server.NewServer(opts)
	if err != nil {
		fail(err)
	}
	s.ConfigureLogger()
	if err := server.Run(s); err != nil {
		fail(err)
	}
	s.WaitForShutdown()
}

func fail(why any) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(1)
}
