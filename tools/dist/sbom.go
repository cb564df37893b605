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
	command.Licenses = &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}}
	var settings []cyclonedx.Property
	for _, s := range info.Settings {
		settings = append(settings, cyclonedx.Property{Name: "go:build:" + s.Key, Value: s.Value})
	}
	command.Properties = &settings

	components := []cyclonedx.Component{
		component("std", strings.TrimPrefix(info.GoVersion, "go"), cyclonedx.ComponentTypeLibrary),
	}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		v := m.Version
		if m.Path == ours || strings.HasPrefix(m.Path, ours+"/") { // from this checkout
			v = version
		}
		c := component(m.Path, v, cyclonedx.ComponentTypeLibrary)
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

// component names a module in the form of package URLs.
func component(modulePath, version string, kind cyclonedx.ComponentType) cyclonedx.Component {
	url := "pkg:golang/" + modulePath + "@" + version
	return cyclonedx.Component{Type: kind, BOMRef: url, Name: modulePath, Version: version, PackageURL: url}
}
