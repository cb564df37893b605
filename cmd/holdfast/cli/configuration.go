package cli

import (
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/system"
	"github.com/spf13/cobra"
)

// machineConfig is the configuration file of all users of this machine.
const machineConfig = "/etc/holdfast/config"

// configVariable names the file that is read instead of those of the machine and of the user. If it is set and empty,
// none is read.
const configVariable = "HOLDFAST_CONFIG"

// configuration is the lines of the configuration files, those of the machine's before those of the user's. A line
// overrides all before it.
type configuration []configLine

// configLine sets one key.
type configLine struct {
	key, value string
	pattern    string // of the locks that it is for, in a section
	inSection  bool
	source     string // FILE:LINE
}

// readConfiguration reads the configuration files once. It also refuses unknown variables of the environment: both are
// settings, and neither may be ignored because of a typing error.
var readConfiguration = sync.OnceValues(func() (configuration, error) {
	if err := checkEnvironment(os.Environ()); err != nil {
		return nil, err
	}
	var all configuration
	for _, f := range configFiles() {
		lines, err := f.read()
		if err != nil {
			return nil, err
		}
		all = append(all, lines...)
	}
	return all, nil
})

// configFile is a file that may have configuration in it.
type configFile struct {
	path     string
	required bool   // it is an error if there is none
	home     string // for the file of a user: the directory that must be the user's own
}

// configFiles are the files to read, in their order.
func configFiles() []configFile {
	if path, set := os.LookupEnv(configVariable); set && path == "" {
		return nil
	} else if set {
		return []configFile{{path: path, required: true}}
	}
	files := []configFile{{path: machineConfig}}
	if dir := os.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return append(files, configFile{path: filepath.Join(dir, "holdfast", "config"), home: dir})
	}
	if home := homeDirectory(); filepath.IsAbs(home) {
		return append(files, configFile{path: filepath.Join(home, ".config", "holdfast", "config"), home: home})
	}
	return files
}

// homeDirectory is the home directory of the user, or empty. HOME is not set in a service of systemd, and such a job
// must not use another store than the same user in a shell.
func homeDirectory() string {
	if home, set := os.LookupEnv("HOME"); set {
		return home
	}
	if u, err := user.LookupId(strconv.Itoa(os.Geteuid())); err == nil {
		return u.HomeDir
	}
	return ""
}

// isAbsent reports whether there is no file, after this error of opening it. After su or setpriv, HOME may still be
// that of root, where this user can look for nothing and has no file.
func (f configFile) isAbsent(err error) bool {
	switch {
	case f.required:
		return false
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return true
	case f.home == "" || !errors.Is(err, fs.ErrPermission):
		return false
	}
	info, err := os.Stat(f.home)
	if err != nil {
		return errors.Is(err, fs.ErrPermission)
	}
	owner, known := system.Owner(info)
	return known && owner != os.Geteuid()
}

// isFlag reports whether the line is the default of a flag. That of --store is chosen by chooseStore.
func (l configLine) isFlag() bool { return l.key == "owner" || slices.Contains(lockConfigKeys, l.key) }

// find returns the last line with a key, outside of sections.
func (c configuration) find(key string) (found configLine, ok bool) {
	for _, line := range c {
		if line.key == key && !line.inSection {
			found, ok = line, true
		}
	}
	return found, ok
}

// findForLock returns the lines that are for a lock: for each key the last one.
func (c configuration) findForLock(name string) map[string]configLine {
	found := map[string]configLine{}
	for _, line := range c {
		if line.isFlag() && (!line.inSection || matchesPattern(line.pattern, name)) {
			found[line.key] = line
		}
	}
	return found
}

// applyLockConfig sets the flags that are not given on the command line as the configuration says for the lock.
func applyLockConfig(c *cobra.Command, name string) error {
	config, err := readConfiguration()
	if err != nil || len(config) == 0 {
		return err
	}
	lines := config.findForLock(name)
	if c.Flags().Changed("no-wait") {
		delete(lines, "wait")
	}
	return applyLines(c, lines)
}

// applyRunConfig is applyLockConfig for once, whose keys are not locks: sections are not for them.
func applyRunConfig(c *cobra.Command) error {
	config, err := readConfiguration()
	if err != nil || len(config) == 0 {
		return err
	}
	lines := map[string]configLine{}
	for _, key := range []string{"ttl", "owner"} {
		if line, ok := config.find(key); ok {
			lines[key] = line
		}
	}
	return applyLines(c, lines)
}

// configAnnotation marks a flag that the configuration has set, with the line.
const configAnnotation = "holdfast_configuration"

// applyLines sets flags of a subcommand. A subcommand may lack some: hold signals no command.
func applyLines(c *cobra.Command, lines map[string]configLine) error {
	for key, line := range lines {
		flag := c.Flags().Lookup(key)
		if flag == nil || flag.Changed {
			continue
		}
		if err := c.Flags().Set(key, line.value); err != nil {
			return configError(line.source, "%s: %s", key, flagErrorText(err))
		}
		_ = c.Flags().SetAnnotation(key, configAnnotation, []string{line.source})
	}
	return nil
}

// configNote names the lines that have set the flags which a usage error is about: nobody finds them on the command
// line.
func configNote(c *cobra.Command, message string) string {
	var notes []string
	for _, key := range lockConfigKeys {
		flag := c.Flags().Lookup(key)
		if flag == nil || len(flag.Annotations[configAnnotation]) == 0 {
			continue
		}
		if strings.Contains(message, "--"+key) || key == "ttl" && strings.Contains(message, "TTL") {
			notes = append(notes, key+" is set in "+flag.Annotations[configAnnotation][0])
		}
	}
	if len(notes) == 0 {
		return ""
	}
	return " (" + strings.Join(notes, ", ") + ")"
}

// matchesPattern reports whether a name matches a pattern, in which * stands for any text and ? for one character.
func matchesPattern(pattern, name string) bool {
	p, n := []rune(pattern), []rune(name)
	star, starAt := -1, 0 // the last star, and where the text begins for which it stands
	i := 0
	for j := 0; j < len(n); {
		switch {
		case i < len(p) && p[i] == '*':
			star, starAt = i, j
			i++
		case i < len(p) && (p[i] == '?' || p[i] == n[j]):
			i++
			j++
		case star >= 0: // let the star stand for one character more
			starAt++
			i, j = star+1, starAt
		default:
			return false
		}
	}
	for i < len(p) && p[i] == '*' {
		i++
	}
	return i == len(p)
}
