package natstest

import (
	"sync"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

const packagePath = "github.com/holdfast-go/holdfast/store/nats/natstest"

// Tool builds the server, if that was not done before, and returns the path of the binary. See [servertest.BuildTool].
var Tool = sync.OnceValues(func() (string, error) {
	return servertest.BuildTool(packagePath, "nats-server", "./nats-server")
})
