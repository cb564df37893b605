package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// npmPlatforms are the names of platforms in npm, by those of Go.
var npmPlatforms = map[string][2]string{
	"linux_amd64": {"linux", "x64"}, "linux_arm64": {"linux", "arm64"},
	"darwin_amd64": {"darwin", "x64"}, "darwin_arm64": {"darwin", "arm64"},
}

// npmFile is a file of a package for npm.
type npmFile struct {
	name string
	data []byte
	mode int64
}

// writeNPMClient writes the package that dir has, with the compiled modules. It depends on the one package with a
// command that fits the platform, of the same version.
func writeNPMClient(dir, compiled, version, out string, date time.Time) error {
	text, err := os.ReadFile(filepath.Join(dir, "package.json"))
	if err != nil {
		return err
	}
	var description map[string]any
	if err := json.Unmarshal(text, &description); err != nil {
		return err
	}
	engines := map[string]string{}
	for _, p := range npmPlatforms {
		engines["@holdfast/engine-"+p[0]+"-"+p[1]] = version
	}
	description["version"], description["optionalDependencies"] = version, engines
	readme, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		return err
	}
	files := []npmFile{{"README.md", readme, 0o644}}
	err = filepath.WalkDir(compiled, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(compiled, path)
		files = append(files, npmFile{"dist/" + filepath.ToSlash(name), data, 0o644})
		return err
	})
	if err != nil {
		return err
	}
	return packNPM(filepath.Join(out, "holdfast-client-"+version+".tgz"), description, files, date)
}

// writeNPMEngine writes the package with the command of one platform.
func writeNPMEngine(target, binary, sbom, version, out string, date time.Time) error {
	platform, known := npmPlatforms[target]
	if !known {
		return fmt.Errorf("npm has no name for %s", target)
	}
	name := "engine-" + platform[0] + "-" + platform[1]
	description := map[string]any{
		"name": "@holdfast/" + name, "version": version, "license": "Apache-2.0",
		"description": "The holdfast command, for @holdfast/client",
		"repository":  map[string]string{"type": "git", "url": "git+https://github.com/holdfast-go/holdfast.git"},
		"os":          []string{platform[0]}, "cpu": []string{platform[1]}, "preferUnplugged": true,
	}
	files := []npmFile{{"README.md", []byte("# " + name + "\n\nThe holdfast command, for @holdfast/client.\n"), 0o644}}
	for _, f := range []struct {
		from, to string
		mode     int64
	}{{binary, "bin/holdfast", 0o755}, {sbom, "sbom.cdx.json", 0o644},
		{filepath.Join(filepath.Dir(binary), licensesFile), licensesFile, 0o644}} {
		data, err := os.ReadFile(f.from)
		if err != nil {
			return err
		}
		files = append(files, npmFile{f.to, data, f.mode})
	}
	return packNPM(filepath.Join(out, "holdfast-"+name+"-"+version+".tgz"), description, files, date)
}

// packNPM makes the archive.
func packNPM(file string, description map[string]any, files []npmFile, date time.Time) error {
	text, err := json.MarshalIndent(description, "", "  ")
	if err != nil {
		return err
	}
	license, err := os.ReadFile("LICENSE")
	if err != nil {
		return err
	}
	files = append([]npmFile{{"package.json", append(text, '\n'), 0o644}, {"LICENSE", license, 0o644}}, files...)
	var b bytes.Buffer
	zipped, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	w := tar.NewWriter(zipped)
	for _, f := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: "package/" + f.name, Mode: f.mode, Size: int64(len(f.data)),
			ModTime: date, Format: tar.FormatUSTAR}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write(f.data); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := zipped.Close(); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}
