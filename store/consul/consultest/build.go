package consultest

import "github.com/holdfast-go/holdfast/driver/drivertest/servertest"

const packagePath = "github.com/holdfast-go/holdfast/store/consul/consultest"

// Tool builds the server, if that was not done before, and returns the path of the binary. See
// [servertest.BuildTool]. It takes eight minutes of processor time once, and 3 GB of disk for the Go caches.
func Tool() (string, error) {
	return servertest.BuildTool(packagePath, "consul", "-ldflags=-s -w", "github.com/hashicorp/consul")
}
