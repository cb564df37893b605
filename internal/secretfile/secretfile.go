// Package secretfile reads the passwords that a store's URL names a file of, so that they need not stand in the URL, where
// a list of processes or a log may show them.
package secretfile

import (
	"os"
	"strings"
)

// Read gives a file's content without the ends of line that editors and echo put there.
func Read(path string) (string, error) {
	data, err := os.ReadFile(path)
	return strings.TrimRight(string(data), "\r\n"), err
}
