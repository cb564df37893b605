package storetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// ClassPath returns the class path of the foreign clients in a Maven project. Maven downloads them if necessary.
func ClassPath(t *testing.T, pom string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "classpath")
	c := exec.CommandContext(t.Context(), "mvn", "-q", "-f", pom, "dependency:build-classpath", "-Dmdep.outputFile="+
		file)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("mvn: %v: %s", err, out)
	}
	path, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(path)
}
