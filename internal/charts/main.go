// Command charts draws figures of benchmarks as bars, in pictures for the documents. It reads the files in figures/bench,
// and writes docs/images. Run it in the project's root, as scripts/bench does when a figure has changed.
package main

import (
	"log"
	"os"
	"path/filepath"
)

func main() {
	if err := writeAll("."); err != nil {
		log.Fatal(err)
	}
}

// writeAll draws all charts of the project in a directory.
func writeAll(root string) error {
	for _, c := range charts {
		text, err := c.drawFrom(root)
		if err != nil {
			return err
		}
		if err := os.WriteFile(c.path(root), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// path is where the picture is kept.
func (c chart) path(root string) string { return filepath.Join(root, "docs", "images", c.name+".svg") }
