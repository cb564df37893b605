// Dist makes those artifacts of a release that are not plain archives. scripts/dist calls it. It reads
// SOURCE_DATE_EPOCH: all times in what it writes are that one, so that the same commit always gives the same files.
//
//	dist packages CONFIG VERSION ARCH DIR    a .deb and a .rpm file in DIR, as CONFIG (of nfpm) says; CONFIG can name
//	                                         $VERSION and $ARCH
//	dist image BINARY VERSION ARCH FILE      an image for containers, which docker load and podman load read
//	dist sbom BINARY VERSION FILE            the modules in a binary, in the format of CycloneDX
//
// ARCH is an architecture as Go calls it.
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	date := time.Unix(seconds, 0).UTC()
	switch {
	case len(args) == 5 && args[0] == "packages":
		return writePackages(args[1], args[2], args[3], args[4], date)
	case len(args) == 5 && args[0] == "image":
		return writeImage(args[1], args[2], args[3], args[4], date)
	case len(args) == 4 && args[0] == "sbom":
		return writeSBOM(args[1], args[2], args[3], date)
	}
	return errors.New("the arguments are packages CONFIG VERSION ARCH DIR, image BINARY VERSION ARCH FILE, " +
		"or sbom BINARY VERSION FILE")
}
