package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/system"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// maxConfigSize is more than anybody writes into a configuration file.
const maxConfigSize = 1 << 20

// The keys of a configuration file. Those of a lock are named like the flags of run.
var (
	topConfigKeys  = []string{"store", "owner", "local-default", "ttl"}
	lockConfigKeys = []string{"ttl", "wait", "min-hold", "max-hold", "grace", "signal", "store-wait"}
)

// configError is an error in a configuration file, at FILE:LINE or in all of FILE.
func configError(where, format string, args ...any) *exitError {
	exit := exitWith(exitUsage, "%s: %s", where, fmt.Sprintf(format, args...))
	exit.err = fmt.Errorf(`%w; see "holdfast help configuration"`, exit.err)
	return exit
}

// read returns the lines of the file. There are none if the file does not exist and need not.
func (f configFile) read() (configuration, error) {
	// Opening a FIFO would wait for a writer.
	file, err := os.OpenFile(f.path, os.O_RDONLY|system.NonBlock, 0)
	if err != nil && f.isAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, configError(f.path, "the file cannot be read: %s", rootCause(err))
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, configError(f.path, "the file cannot be read: %s", rootCause(err))
	}
	if owner, known := system.Owner(info); known {
		if err := checkConfigOwner(info.Mode(), owner, os.Geteuid()); err != nil {
			return nil, configError(f.path, "%s", err)
		}
	}
	text, err := io.ReadAll(io.LimitReader(file, maxConfigSize+1))
	switch {
	case err != nil:
		return nil, configError(f.path, "the file cannot be read: %s", rootCause(err))
	case len(text) > maxConfigSize:
		return nil, configError(f.path, "the file has more than %d bytes", maxConfigSize)
	}
	return parseConfig(f.path, string(text))
}

// checkConfigOwner refuses a file that somebody else could change: it decides where locks are kept, and so whether they
// exclude anybody.
func checkConfigOwner(mode os.FileMode, owner, user int) error {
	switch {
	case !mode.IsRegular():
		return errors.New("this is not a regular file; to use none, set " + configVariable + " to nothing")
	case owner != 0 && owner != user:
		return fmt.Errorf("the file belongs to user %d and not to root or to user %d, who runs this; change its owner",
			owner, user)
	case mode.Perm()&0o002 != 0:
		return fmt.Errorf("others can write this file (mode %04o); chmod o-w it", mode.Perm())
	case user == 0 && mode.Perm()&0o020 != 0:
		return fmt.Errorf("its group can write this file (mode %04o), and root runs this; chmod g-w it", mode.Perm())
	}
	return nil
}

// parseConfig reads the text of a configuration file. No error shows a value or a whole line: a URL may have a
// password.
func parseConfig(file, text string) (configuration, error) {
	var lines configuration
	current := configLine{} // the section
	set := map[string]bool{}
	number := 0
	for line := range strings.Lines(text) {
		number++
		current.source = fmt.Sprintf("%s:%d", file, number)
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
			continue
		case line[0] == '[':
			pattern, err := parseSection(line)
			if err != nil {
				return nil, configError(current.source, "%s", err)
			}
			current.pattern, current.inSection = pattern, true
			clear(set)
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !ok {
			return nil, configError(current.source, `this line is neither "key = value" nor "[lock PATTERN]"`)
		}
		err := checkConfigKey(key, current.inSection)
		if err == nil {
			err = checkConfigValue(key, value)
		}
		if err == nil && set[key] {
			err = fmt.Errorf("%s is set twice", key)
		}
		if err != nil {
			return nil, configError(current.source, "%s", err)
		}
		set[key] = true
		current.key, current.value = key, value
		lines = append(lines, current)
	}
	return lines, nil
}

// parseSection returns the pattern of [lock PATTERN].
func parseSection(line string) (pattern string, err error) {
	text, closed := strings.CutSuffix(line[1:], "]")
	kind, pattern, _ := strings.Cut(text, " ")
	pattern = strings.TrimSpace(pattern)
	switch {
	case !closed:
		return "", errors.New("a section ends with ]")
	case kind != "lock" || pattern == "":
		return "", errors.New("a section is [lock PATTERN], such as [lock nightly-*]")
	}
	return pattern, nil
}

// plainKey matches what is certainly a key: another text may be part of a password.
var plainKey = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z][A-Za-z_-]{0,30}$`) })

// checkConfigKey refuses an unknown key, and one in the wrong place.
func checkConfigKey(key string, inSection bool) error {
	known, others := topConfigKeys, lockConfigKeys
	if inSection {
		known, others = others, known
	}
	switch {
	case slices.Contains(known, key):
		return nil
	case slices.Contains(others, key) && inSection:
		return fmt.Errorf("%s is for all locks; write it above the first section", key)
	case slices.Contains(others, key):
		return fmt.Errorf("%s is written in a section; that of all locks is [lock *]", key)
	case !plainKey().MatchString(key):
		return errors.New("this is not a key; the keys are " + strings.Join(known, ", "))
	}
	if like := driverutil.FindSimilar(key, known...); like != "" {
		return fmt.Errorf("unknown key %s; did you mean %s?", key, like)
	}
	return fmt.Errorf("unknown key %s; known are %s", key, strings.Join(known, ", "))
}

// checkConfigValue checks what can be checked of a value alone. Values that do not fit together are refused as the
// flags are.
func checkConfigValue(key, value string) error {
	var err error
	switch key {
	case "store":
		if value == "" {
			err = errors.New("a URL is missing")
		} else if value[0] == '"' || value[0] == '\'' {
			err = errors.New("a value is written without quotes")
		}
		return wrapKey(key, err)
	case "local-default":
		if value != "forbid" && value != "allow" {
			err = errors.New("write forbid or allow")
		}
	case "owner":
		err = (&labelFlag{new(string), driver.MaxOwner}).Set(value)
	case "signal":
		_, err = parseSignal(value)
	case "wait", "store-wait":
		err = new(waitLimit).Set(value)
	default:
		var d time.Duration
		if d, err = time.ParseDuration(value); err != nil || d < 0 {
			err = errors.New("write a duration with its unit, such as 30s")
		} else if key == "ttl" && (d < time.Second || d > 24*time.Hour) {
			err = errors.New("write 1s to 24h")
		} else if key == "max-hold" && d < time.Second {
			err = errors.New("write 1s or more")
		}
	}
	if err != nil && strings.Contains(value, "#") {
		err = errors.New("this value cannot be used; a comment needs a line of its own")
	}
	return wrapKey(key, err)
}

func wrapKey(key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s", key, errorText(err))
}
