package main

import (
	"os"
	"path/filepath"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// writePackages writes one package per format into dir.
func writePackages(config, version, arch, dir string, date time.Time) error {
	variables := map[string]string{"VERSION": version, "ARCH": arch}
	for _, format := range []string{"deb", "rpm"} {
		file, err := os.Open(config)
		if err != nil {
			return err
		}
		parsed, err := nfpm.ParseWithEnvMapping(file, func(name string) string { return variables[name] })
		file.Close()
		if err != nil {
			return err
		}
		info, err := parsed.Get(format)
		if err != nil {
			return err
		}
		info.MTime = date
		for _, content := range info.Contents {
			if content.FileInfo == nil || content.FileInfo.MTime.IsZero() {
				content.FileInfo.MTime = date
			}
		}
		packager, err := nfpm.Get(format)
		if err != nil {
			return err
		}
		if err := writePackage(packager, nfpm.WithDefaults(info), dir); err != nil {
			return err
		}
	}
	return nil
}

// writePackage writes one package under the name that is usual for its format.
func writePackage(packager nfpm.Packager, info *nfpm.Info, dir string) error {
	name := filepath.Join(dir, packager.ConventionalFileName(info))
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := packager.Package(info, file); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}
