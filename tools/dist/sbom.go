package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"os"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

const ours = "github.com/holdfast-go/holdfast"

// writeSBOM lists what the linker says is in a binary: the modules, and Go's own library.
func writeSBOM(binary, version, file string, date time.Time) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)

	command := component(info.Path, version, cyclonedx.ComponentTypeApplication)
	command.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
	command.Licenses = licensesOf("Apache-2.0")
	var settings []cyclonedx.Property
	for _, s := range info.Settings {
		settings = append(settings, cyclonedx.Property{Name: "go:build:" + s.Key, Value: s.Value})
	}
	command.Properties = &settings

	modules, err := readModules(info)
	if err != nil {
		return err
	}
	licenses := map[string][]string{}
	for _, m := range modules {
		licenses[m.name] = m.identifyLicenses()
	}

	std := component("std", strings.TrimPrefix(info.GoVersion, "go"), cyclonedx.ComponentTypeLibrary)
	std.Licenses = licensesOf(licenses[modules[0].name]...)
	components := []cyclonedx.Component{std}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		v, ids := m.Version, licenses[m.Path+"@"+m.Version]
		if isOurs(m.Path) { // from this checkout
			v, ids = version, []string{"Apache-2.0"}
		}
		c := component(m.Path, v, cyclonedx.ComponentTypeLibrary)
		c.Licenses = licensesOf(ids...)
		if m.Sum != "" {
			c.Properties = &[]cyclonedx.Property{{Name: "go:sum", Value: m.Sum}}
		}
		components = append(components, c)
	}

	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Timestamp: date.Format(time.RFC3339), Component: &command}
	bom.Components = &components
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := cyclonedx.NewBOMEncoder(out, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// isOurs reports whether a module is from this repository.
func isOurs(modulePath string) bool {
	return modulePath == ours || strings.HasPrefix(modulePath, ours+"/")
}

// licensesOf lists licenses by their names; nil if there are none.
func licensesOf(ids ...string) *cyclonedx.Licenses {
	if len(ids) == 0 {
		return nil
	}
	var list cyclonedx.Licenses
	for _, id := range ids {
		list = append(list, cyclonedx.LicenseChoice{License: &cyclonedx.License{ID: id}})
	}
	return &list
}

// component names a module in the form of package URLs.
func component(modulePath, version string, kind cyclonedx.ComponentType) cyclonedx.Component {
	url := "pkg:golang/" + modulePath + "@" + version
	return cyclonedx.Component{Type: kind, BOMRef: url, Name: modulePath, Version: version, PackageURL: url}
}
