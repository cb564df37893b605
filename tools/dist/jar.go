package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// writeJavaClient writes the jar with the compiled classes, the jars with their sources and their documentation, and the
// description for Maven.
func writeJavaClient(dir, compiled, pages, version, out string, date time.Time) error {
	for name, from := range map[string]string{"": compiled, "-sources": filepath.Join(dir, "src"), "-javadoc": pages} {
		files, err := filesBelow(from)
		if err != nil {
			return err
		}
		if err := packJar(filepath.Join(out, "holdfast-client-"+version+name+".jar"), version, files, date); err != nil {
			return err
		}
	}
	const purpose = "Locks, elections and runs that several programs share, on a store that you have"
	return writePOM(dir, "holdfast-client", purpose, version, out)
}

// engineReadme is all that the jars with the sources and the documentation of a command contain.
const engineReadme = `This artifact is the holdfast command for %s, a program in Go. It has neither sources in Java nor an API.

Its sources and its documentation: https://github.com/holdfast-go/holdfast, version %s
The sources of what it contains of others: META-INF/LICENSES.txt, in the jar with the command
`

// writeJavaEngine writes the jar with the command of one platform. Maven Central accepts no jar without one of sources
// and one of documentation, so it has these too, with a README alone.
func writeJavaEngine(dir, target, binary, sbom, version, out string, date time.Time) error {
	command, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	modules, err := os.ReadFile(sbom)
	if err != nil {
		return err
	}
	licenses, err := readLicenses(binary)
	if err != nil {
		return err
	}
	platform := strings.ReplaceAll(target, "_", "-")
	sum := sha256.Sum256(command)
	at := "META-INF/holdfast/" + platform + "/holdfast"
	name := "holdfast-engine-" + platform
	files := []jarFile{{at, command}, {at + ".sha256", []byte(hex.EncodeToString(sum[:]) + "\n")},
		{"META-INF/sbom/holdfast.cdx.json", modules}, {"META-INF/" + licensesFile, licenses}}
	readme := []jarFile{{"README.txt", fmt.Appendf(nil, engineReadme, platform, version)}}
	for kind, files := range map[string][]jarFile{"": files, "-sources": readme, "-javadoc": readme} {
		if err := packJar(filepath.Join(out, name+"-"+version+kind+".jar"), version, files, date); err != nil {
			return err
		}
	}
	return writePOM(dir, name, "The holdfast command, for holdfast-client", version, out)
}

// writePOM writes the description of an artifact: that of dir, with its name, version and purpose.
func writePOM(dir, name, purpose, version, out string) error {
	text, err := os.ReadFile(filepath.Join(dir, "pom.xml"))
	if err != nil {
		return err
	}
	filled := strings.NewReplacer("$NAME", name, "$VERSION", version, "$PURPOSE", purpose).Replace(string(text))
	return os.WriteFile(filepath.Join(out, name+"-"+version+".pom"), []byte(filled), 0o644)
}

// jarFile is a file of a jar.
type jarFile struct {
	name string
	data []byte
}

func filesBelow(dir string) (files []jarFile, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		files = append(files, jarFile{filepath.ToSlash(name), data})
		return err
	})
	return files, err
}

func packJar(file, version string, files []jarFile, date time.Time) error {
	license, err := os.ReadFile("LICENSE")
	if err != nil {
		return err
	}
	const form = "Manifest-Version: 1.0\r\nImplementation-Title: holdfast\r\nImplementation-Version: %s\r\n\r\n"
	manifest := fmt.Sprintf(form, version)
	files = append([]jarFile{{"META-INF/MANIFEST.MF", []byte(manifest)}, {"META-INF/LICENSE", license}}, files...)
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, f := range files {
		to, err := w.CreateHeader(&zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: date})
		if err == nil {
			_, err = to.Write(f.data)
		}
		if err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}
