package cli

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// Both are set when the artifacts of a release are built, which scripts/dist does: -ldflags "-X
// PACKAGE.version=v1.2.3".
var version, commit string

func newVersion() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  exactArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			if asJSON {
				return writeRecord(c.OutOrStdout(), recordVersion,
					fields{"go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH})
			}
			return printVersion(c.OutOrStdout())
		},
	}
	addJSONFlag(c, &asJSON)
	return c
}

func printVersion(w io.Writer) error {
	_, err := fmt.Fprintf(w, "holdfast %s %s %s/%s\n", buildVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

const commandModule = "github.com/holdfast-go/holdfast/cmd/holdfast"

// versionInProgram is the version of the command in another program, and the name of that program's module.
func versionInProgram(info *debug.BuildInfo) string {
	v := "(unknown)"
	for _, m := range info.Deps {
		if m.Path == commandModule {
			v = m.Version
		}
	}
	return strings.TrimSpace(v + " in " + info.Main.Path + " " + info.Main.Version)
}

// buildVersion is the release and its commit, or what the build knows about them.
func buildVersion() string {
	if version != "" {
		return strings.TrimSpace(version + " " + commit)
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown)"
	}
	if info.Main.Path != commandModule {
		return versionInProgram(info)
	}
	v, revision, changed := info.Main.Version, "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = " " + s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = " with changes"
		}
	}
	return v + revision + changed
}
