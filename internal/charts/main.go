// Command charts draws figures of benchmarks as bars, in pictures for the documents, and writes them into the tables of
// figures/performance.md. It reads the files in figures/bench, and writes docs/images. Run it in the project's root, as
// scripts/bench does when a figure has changed.
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

// writeAll draws all charts of the project in a directory, and fills the tables.
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
	text, err := os.ReadFile(filepath.Join(root, document))
	if err != nil {
		return err
	}
	if text, err = fillTables(root, text); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, document), text, 0o644)
}

// path is where the picture is kept.
func (c chart) path(root string) string { return filepath.Join(root, "docs", "images", c.name+".svg") }
