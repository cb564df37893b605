// Dist makes those artifacts of a release that are not plain archives. scripts/dist calls it. It reads
// SOURCE_DATE_EPOCH: all times in what it writes are that one, so that the same commit always gives the same files.
//
//	dist packages CONFIG VERSION ARCH DIR    a .deb and a .rpm file in DIR, as CONFIG (of nfpm) says; CONFIG can name
//	                                         $VERSION and $ARCH
//	dist image BINARY VERSION ARCH FILE      an image for containers, which docker load and podman load read
//	dist sbom BINARY VERSION FILE            the modules in a binary, in the format of CycloneDX
//	dist licenses BINARY FILE                the licenses and notices of these modules
//	dist wheel DIR SOURCE VERSION TAG OUT [BINARY SBOM]
//	                                         a package for Python in OUT: DIR has METADATA and README.md, and SOURCE the
//	                                         modules; with a command, TAG names its platform
//	dist npm-client DIR COMPILED VERSION OUT
//	                                         a package for Node in OUT: DIR has package.json and README.md
//	dist npm-engine TARGET BINARY SBOM VERSION OUT
//	                                         a package for Node with the command for TARGET, such as linux_amd64
//	dist jar-client DIR COMPILED PAGES VERSION OUT
//	                                         jars and a description for Maven in OUT: DIR has src and pom.xml, and PAGES
//	                                         what javadoc has made
//	dist jar-engine DIR TARGET BINARY SBOM VERSION OUT
//	                                         a jar with the command for TARGET, those that Maven Central wants next to it,
//	                                         and its description
//
// ARCH is an architecture as Go calls it. Next to each BINARY that goes into an artifact is its LICENSES.txt.
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
	case len(args) == 3 && args[0] == "licenses":
		return writeLicenses(args[1], args[2])
	case len(args) == 6 && args[0] == "wheel":
		return writeWheel(args[1], args[2], args[3], args[4], args[5], "", "", date)
	case len(args) == 8 && args[0] == "wheel":
		return writeWheel(args[1], args[2], args[3], args[4], args[5], args[6], args[7], date)
	case len(args) == 5 && args[0] == "npm-client":
		return writeNPMClient(args[1], args[2], args[3], args[4], date)
	case len(args) == 6 && args[0] == "npm-engine":
		return writeNPMEngine(args[1], args[2], args[3], args[4], args[5], date)
	case len(args) == 6 && args[0] == "jar-client":
		return writeJavaClient(args[1], args[2], args[3], args[4], args[5], date)
	case len(args) == 7 && args[0] == "jar-engine":
		return writeJavaEngine(args[1], args[2], args[3], args[4], args[5], args[6], date)
	}
	return errors.New("the arguments are packages CONFIG VERSION ARCH DIR, image BINARY VERSION ARCH FILE, " +
		"sbom BINARY VERSION FILE, licenses BINARY FILE, wheel DIR SOURCE VERSION TAG OUT [BINARY SBOM], npm-client DIR COMPILED VERSION OUT, " +
		"npm-engine TARGET BINARY SBOM VERSION OUT, jar-client DIR COMPILED PAGES VERSION OUT, " +
		"or jar-engine DIR TARGET BINARY SBOM VERSION OUT")
}
