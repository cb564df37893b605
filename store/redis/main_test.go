package redis

import (
	"flag"
	"os"
	"testing"
)

// TestMain runs more tests at a time than there are processors: most of them wait.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", "6")
	}
	os.Exit(m.Run())
}
