package cli

import (
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// variablePrefix begins the names of the variables of this program.
const variablePrefix = "HOLDFAST_"

// settingVariables are the variables that users set.
var settingVariables = []string{"HOLDFAST_STORE", configVariable}

// binVariable is for the packages of other languages, which start the command that it names. This program has no use
// for it.
const binVariable = "HOLDFAST_BIN"

// jobVariables are the variables that this program sets for the commands that it runs, which may call it again.
var jobVariables = []string{"HOLDFAST_LOCK", "HOLDFAST_TOKEN", "HOLDFAST_TOKENS", "HOLDFAST_ID", permitVariable, heldVariable,
	"HOLDFAST_KEY", "HOLDFAST_SLOT", "HOLDFAST_ATTEMPT", "HOLDFAST_COMMAND_PID", progressVariable}

// serviceVariable matches the variables that Kubernetes sets in each container for a Service whose name is holdfast or
// begins with holdfast-.
var serviceVariable = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^HOLDFAST_([A-Z0-9_]+_)?(SERVICE_(HOST|PORT(_.+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)
})

// checkEnvironment refuses variables with the prefix that this program does not know. One of them may be HOLDFAST_STORE
// with a typing error, and the locks would then be kept in another store than the user believes.
func checkEnvironment(environ []string) error {
	for _, v := range environ {
		name, _, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, variablePrefix) || name == binVariable || slices.Contains(settingVariables, name) ||
			slices.Contains(jobVariables, name) || serviceVariable().MatchString(name) {
			continue
		}
		shown := quoteName(name[:min(len(name), 64)])
		var settings []string // without the prefix, which all have
		for _, setting := range settingVariables {
			settings = append(settings, strings.TrimPrefix(setting, variablePrefix))
		}
		if like := driverutil.FindSimilar(strings.TrimPrefix(name, variablePrefix), settings...); like != "" {
			return exitWith(exitUsage, "unknown variable %s in the environment; did you mean %s?", shown, variablePrefix+like)
		}
		return exitWith(exitUsage, "unknown variable %s in the environment; names that begin with %s are reserved: "+
			"use %s, or rename it", shown, variablePrefix, strings.Join(settingVariables, " or "))
	}
	return nil
}
