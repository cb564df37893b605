package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// wheelFile is a file of a wheel.
type wheelFile struct {
	name string
	data []byte
	mode fs.FileMode
}

// writeWheel writes a package for Python. dir has METADATA, in which $VERSION stands for the version, and README.md.
// The modules are in source. binary and its SBOM may be empty: then the package is for all platforms.
func writeWheel(dir, source, version, tag, out, binary, sbom string, date time.Time) error {
	version = pythonVersion(version)
	metadata, err := os.ReadFile(filepath.Join(dir, "METADATA"))
	if err != nil {
		return err
	}
	readme, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		return err
	}
	license, err := os.ReadFile("LICENSE")
	if err != nil {
		return err
	}
	text := strings.ReplaceAll(string(metadata), "$VERSION", version)
	name := strings.ReplaceAll(regexp.MustCompile(`(?m)^Name: (.*)$`).FindStringSubmatch(text)[1], "-", "_")
	files, err := wheelModules(source)
	if err != nil {
		return err
	}
	info := fmt.Sprintf("%s-%s.dist-info/", name, version)
	wheel := fmt.Sprintf("Wheel-Version: 1.0\nGenerator: holdfast\nRoot-Is-Purelib: %t\n", binary == "")
	parts := strings.SplitN(tag, "-", 3)
	for platform := range strings.SplitSeq(parts[2], ".") {
		wheel += fmt.Sprintf("Tag: %s-%s-%s\n", parts[0], parts[1], platform)
	}
	if binary != "" {
		for _, f := range []struct {
			from, to string
			mode     fs.FileMode
		}{{binary, name + "/bin/holdfast", 0o755}, {sbom, info + "sboms/holdfast.cdx.json", 0o644},
			{filepath.Join(filepath.Dir(binary), licensesFile), info + "licenses/" + licensesFile, 0o644}} {
			data, err := os.ReadFile(f.from)
			if err != nil {
				return err
			}
			files = append(files, wheelFile{f.to, data, f.mode})
		}
	}
	files = append(files, wheelFile{info + "METADATA", []byte(text + "\n" + string(readme)), 0o644},
		wheelFile{info + "WHEEL", []byte(wheel), 0o644},
		wheelFile{info + "licenses/LICENSE", license, 0o644})
	data, err := packWheel(files, info, date)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, fmt.Sprintf("%s-%s-%s.whl", name, version, tag)), data, 0o644)
}

// wheelModules are the files of the one package below a directory.
func wheelModules(source string) (files []wheelFile, err error) {
	err = filepath.WalkDir(source, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "__pycache__":
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".py" && d.Name() != "py.typed":
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(filepath.Dir(source), path)
		files = append(files, wheelFile{filepath.ToSlash(name), data, 0o644})
		return err
	})
	return files, err
}

// packWheel makes the archive, with the list of its files.
func packWheel(files []wheelFile, info string, date time.Time) ([]byte, error) {
	var record strings.Builder
	for _, f := range files {
		sum := sha256.Sum256(f.data)
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", f.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(f.data))
	}
	fmt.Fprintf(&record, "%sRECORD,,\n", info)
	files = append(files, wheelFile{info + "RECORD", []byte(record.String()), 0o644})
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, f := range files {
		header := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: date}
		header.SetMode(f.mode)
		to, err := w.CreateHeader(header)
		if err == nil {
			_, err = to.Write(f.data)
		}
		if err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

// pythonVersion is a version in the form of Python: what follows the number is a local version there, except that
// candidates are no local versions.
func pythonVersion(version string) string {
	number, rest, more := strings.Cut(version, "-")
	if !more {
		return number
	}
	if n, ok := strings.CutPrefix(rest, "rc."); ok && !strings.Contains(n, "-") {
		return number + "rc" + n
	}
	return number + "+" + strings.ReplaceAll(rest, "-", ".")
}
