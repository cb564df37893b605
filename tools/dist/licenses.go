package main

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/module"
)

// licensesFile is next to each command: most licenses want their text to go with the binary.
const licensesFile = "LICENSES.txt"

// readLicenses reads the file next to a command.
func readLicenses(binary string) ([]byte, error) {
	return os.ReadFile(filepath.Join(filepath.Dir(binary), licensesFile))
}

// licensedModule is a module of others in a binary, or Go itself, with the texts of its licenses and notices.
type licensedModule struct {
	name  string // path and version
	texts []string
}

// writeLicenses writes the licenses and notices of all modules in a binary, each text once.
func writeLicenses(binary, file string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	modules, err := readModules(info)
	if err != nil {
		return err
	}
	users := map[string][]string{}
	var order []string
	for _, m := range modules {
		for _, text := range m.texts {
			if users[text] == nil {
				order = append(order, text)
			}
			users[text] = append(users[text], m.name)
		}
	}
	var b bytes.Buffer
	b.WriteString("The holdfast command contains Go's library and these modules, unchanged. Their sources can be had\n" +
		"from Go's module proxy, by path and version. Each text is the license or the notice of those above it.\n")
	for _, text := range order {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(users[text], "\n"), text)
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

// readModules reads the texts of Go and of the modules of others, in the order of the binary.
func readModules(info *buildinfo.BuildInfo) ([]licensedModule, error) {
	root, err := goEnv("GOROOT")
	if err != nil {
		return nil, err
	}
	cache, err := goEnv("GOMODCACHE")
	if err != nil {
		return nil, err
	}
	dirs := []string{root}
	modules := []licensedModule{{name: "std@" + strings.TrimPrefix(info.GoVersion, "go")}}
	for _, m := range info.Deps {
		if isOurs(m.Path) {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		escaped, err := module.EscapePath(m.Path)
		if err != nil {
			return nil, err
		}
		version, err := module.EscapeVersion(m.Version)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, filepath.Join(cache, filepath.FromSlash(escaped)+"@"+version))
		modules = append(modules, licensedModule{name: m.Path + "@" + m.Version})
	}
	for i, dir := range dirs {
		if modules[i].texts, err = readTexts(dir, i == 0); err != nil {
			return nil, err
		}
		if len(modules[i].texts) == 0 {
			return nil, fmt.Errorf("%s has no license", modules[i].name)
		}
	}
	return modules, nil
}

func goEnv(name string) (string, error) {
	out, err := exec.Command("go", "env", name).Output()
	return strings.TrimSpace(string(out)), err
}

var isLicense = regexp.MustCompile(`(?i)^(licen[cs]es?|copying|copyright|notices?|patents)([-._].*)?$`)

// readTexts reads the licenses and notices below a directory, or in it alone. Code that was copied from elsewhere has its
// own next to it.
func readTexts(dir string, alone bool) (texts []string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir && (alone || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || !isLicense.MatchString(d.Name()) || filepath.Ext(path) == ".go":
			return nil
		}
		data, err := os.ReadFile(path)
		if text := strings.TrimSpace(strings.ReplaceAll(string(data), "\r\n", "\n")); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: run go mod download in cmd/holdfast", err)
	}
	return texts, err
}

// licenseForms are the names of the licenses that modules have, in the form of SPDX, each with what its text says.
var licenseForms = []struct {
	id   string
	says []string
}{
	{"Apache-2.0", []string{"Apache License", "Version 2.0"}},
	{"MPL-2.0", []string{"Mozilla Public License", "2.0"}},
	{"BSD-3-Clause", []string{"Redistribution and use in source and binary forms", "endorse or promote products"}},
	{"BSD-2-Clause", []string{"Redistribution and use in source and binary forms"}},
	{"MIT", []string{"Permission is hereby granted, free of charge"}},
	{"ISC", []string{"Permission to use, copy, modify, and/or distribute this software"}},
	{"ISC", []string{"Permission to use, copy, modify, and distribute this software"}},
}

// identifyLicenses returns what the licenses are, as far as their texts say it in the usual words.
func (m licensedModule) identifyLicenses() (ids []string) {
	for _, text := range m.texts {
		text = strings.Join(strings.Fields(text), " ")
		for _, form := range licenseForms {
			if !slices.ContainsFunc(form.says, func(s string) bool { return !strings.Contains(text, s) }) {
				if !slices.Contains(ids, form.id) {
					ids = append(ids, form.id)
				}
				break
			}
		}
	}
	return ids
}
