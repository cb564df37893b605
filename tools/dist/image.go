package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"io"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// binaryPath is where the image has the command, so that other images can copy it.
const binaryPath = "usr/bin/holdfast"

// nobody is a user without rights, by the number that is usual in small images.
const nobody = "65532:65532"

// writeImage writes an image that contains the command, its licenses and the root certificates that TLS needs, and nothing
// else.
func writeImage(binary, version, arch, file string, date time.Time) error {
	data, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	licenses, err := readLicenses(binary)
	if err != nil {
		return err
	}
	files, err := imageFiles(data, licenses, date)
	if err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files)), nil
	})
	if err != nil {
		return err
	}
	image, err := mutate.Append(empty.Image, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: v1.Time{Time: date}, CreatedBy: "holdfast make dist"},
	})
	if err != nil {
		return err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: date}
	config.Config = v1.Config{
		Entrypoint: []string{"/" + binaryPath},
		Env:        []string{"PATH=/usr/bin:/bin"},
		User:       nobody,
		Labels: map[string]string{
			"org.opencontainers.image.title":    "holdfast",
			"org.opencontainers.image.version":  version,
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source":   "https://github.com/holdfast-go/holdfast",
		},
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return err
	}
	tag, err := name.NewTag("holdfast:" + version)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(file, tag, image)
}

// imageFiles is a tar archive of the image's files.
func imageFiles(binary, licenses []byte, date time.Time) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range []struct {
		name string
		mode int64
		data []byte
	}{
		{"etc/", 0o755, nil},
		{"etc/ssl/", 0o755, nil},
		{"etc/ssl/certs/", 0o755, nil},
		{"etc/ssl/certs/ca-certificates.crt", 0o644, rootCertificates()},
		{"tmp/", 0o1777, nil},
		{"usr/", 0o755, nil},
		{"usr/bin/", 0o755, nil},
		{binaryPath, 0o755, binary},
		{"usr/share/", 0o755, nil},
		{"usr/share/licenses/", 0o755, nil},
		{"usr/share/licenses/holdfast/", 0o755, nil},
		{"usr/share/licenses/holdfast/" + licensesFile, 0o644, licenses},
	} {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, ModTime: date}
		header.Size = int64(len(f.data))
		if f.data == nil {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

// rootCertificates lists those that browsers trust without conditions. A file cannot say conditions.
func rootCertificates() []byte {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return b.Bytes()
}
