package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
)

// requestAction is the value of --on-request: what run or hold does when somebody asks for the release of its lock. The
// zero value ignores the request.
type requestAction struct {
	release bool   // end the command, and release the lock
	script  string // run it next to the command; empty: none
}

// maxRequestScript is how many bytes a script may have: it must fit into the pipe to the guard.
const maxRequestScript = 4096

func (a *requestAction) addFlag(c *cobra.Command) {
	c.Flags().Var(a, "on-request",
		"if asked for the lock: ignore, release (end the command), or run a `SCRIPT`")
}

func (a *requestAction) Type() string { return "action" }

func (a *requestAction) String() string {
	switch {
	case a.release:
		return "release"
	case a.script != "":
		return a.script
	}
	return "ignore"
}

// Set parses what to do when somebody asks for the lock: one of two words, or a script.
func (a *requestAction) Set(text string) error {
	switch {
	case text == "":
		return errors.New("give ignore, release or a script for sh")
	case len(text) > maxRequestScript:
		return fmt.Errorf("the script has %d bytes, and may have %d; put it into a file", len(text), maxRequestScript)
	case text == "ignore":
		*a = requestAction{}
	case text == "release":
		*a = requestAction{release: true}
	default:
		*a = requestAction{script: text}
	}
	return nil
}

// controlMessage is what the guard is to do; ok is false if that is nothing.
func (a requestAction) controlMessage() (m guard.ControlMessage, ok bool) {
	switch {
	case a.release:
		m.End = true
	case a.script != "":
		m.Beside = []string{"/bin/sh", "sh", "-c", a.script}
	default:
		return m, false
	}
	return m, true
}
