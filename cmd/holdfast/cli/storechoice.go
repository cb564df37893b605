package cli

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// storeChoice is the store that is used, and why.
type storeChoice struct {
	url    string
	source string // where the URL is from: --store, HOLDFAST_STORE, or FILE:LINE; empty: it is the default directory
}

// usedStore is the store of this process, for its messages. A process uses one at most.
var usedStore atomic.Pointer[storeChoice]

// resolveStore chooses the store: that of the flag, that of the environment, that of the configuration files, or the
// default directory. Messages name it from then on.
func resolveStore(flag string) (storeChoice, error) {
	choice, err := chooseStore(flag)
	if err == nil {
		usedStore.Store(&choice)
	}
	return choice, err
}

func chooseStore(flag string) (storeChoice, error) {
	choice, err := findStore(flag)
	// A secret that is kept in a file often ends with a newline, and no URL begins or ends with a blank.
	choice.url = strings.TrimSpace(choice.url)
	if err == nil && (strings.HasPrefix(choice.url, `"`) || strings.HasPrefix(choice.url, "'")) {
		return storeChoice{}, usageError("the URL %s begins with a quotation mark, which no shell has removed there; leave the "+
			"quotation marks out", choice.origin())
	}
	return choice, err
}

// findStore finds the store's URL as it was written.
func findStore(flag string) (storeChoice, error) {
	config, err := readConfiguration()
	if err != nil {
		return storeChoice{}, err
	}
	if flag != "" {
		return storeChoice{flag, "--store"}, nil
	}
	if env, set := os.LookupEnv("HOLDFAST_STORE"); set && env == "" {
		return storeChoice{}, usageError("HOLDFAST_STORE is set, and empty; set it to a URL, or unset it")
	} else if set {
		return storeChoice{env, "HOLDFAST_STORE"}, nil
	}
	if line, ok := config.find("store"); ok {
		return storeChoice{line.value, line.source}, nil
	}
	if line, ok := config.find("local-default"); ok && line.value == "forbid" {
		return storeChoice{}, usageError("no store is named, and local-default = forbid in %s; give --store URL, set "+
			"HOLDFAST_STORE, or write store = URL into that file", line.source)
	}
	dir, err := defaultDirectory()
	if err != nil {
		return storeChoice{}, err
	}
	return storeChoice{url: fileURL(dir)}, nil
}

// origin says where the URL is from.
func (s storeChoice) origin() string {
	if s.source == "" {
		return "the default"
	}
	return "from " + s.source
}

// name is the URL as it may be shown: without a user, a password and options. Of a URL that cannot be told from a
// password it is the scheme, and of other texts it is empty.
func (s storeChoice) name() string {
	scheme, rest, ok := strings.Cut(s.url, "://")
	if !ok || !slices.Contains(driver.Schemes(), scheme) {
		return ""
	}
	afterHost := ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		afterHost = rest[i:]
	}
	u, err := url.Parse(s.url)
	if err != nil || strings.Contains(s.url, "#") || scheme != "file" && strings.Contains(afterHost, "@") {
		return scheme + "://..."
	}
	return driverutil.RedactURL(u)
}

// storeNote is the end of a message about the store: which one it is, and where its URL is from. Somebody who believes
// that another store is used sees it there.
func storeNote(message string) string {
	choice := usedStore.Load()
	if choice == nil {
		return ""
	}
	name := choice.name()
	scheme, _, _ := strings.Cut(name, "://")
	switch {
	case name != "" && !strings.Contains(message, " on "+scheme+":"): // as errors of the library name it
		return " (store " + name + ", " + choice.origin() + ")"
	case choice.source == "":
		return " (the default store)"
	}
	return " (the store's URL is " + choice.origin() + ")"
}

// printStoreMessage is printMessage for messages about the store.
func printStoreMessage(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	printMessage("%s%s", text, storeNote(text))
}

// openError is an error of opening the store.
type openError struct{ err error }

func (e *openError) Error() string {
	text := strings.TrimPrefix(errorText(e.err), "open: ")
	return strings.TrimPrefix(text, holdfast.ErrInvalid.Error()+": ")
}

func (e *openError) Unwrap() error { return e.err }

// concernsStore reports whether the reader of the message may have to know which store was used.
func (e *exitError) concernsStore() bool {
	return errors.As(e.err, new(*openError)) || e.code == exitUnavailable ||
		e.outcomeOrDefault() == outcomeNotAcquired || errors.Is(e.err, holdfast.ErrMismatch)
}

// originRows say in the table of stores where the URL is from, and which configuration files there are.
func originRows() [][]string {
	origin := usedStore.Load().origin()
	if origin == "the default" {
		origin = "nowhere: it is the default directory"
	}
	rows := [][]string{{"its URL is", origin}}
	files := configFiles()
	if len(files) == 0 {
		rows = append(rows, []string{"configuration", "none: " + configVariable + " is empty"})
	}
	for i, f := range files {
		text := f.path
		if _, err := os.Stat(f.path); err != nil {
			text += " (not there)"
		}
		rows = append(rows, []string{[]string{"configuration", ""}[min(i, 1)], printableText(text)})
	}
	return rows
}
