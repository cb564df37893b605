package cli

import (
	"cmp"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/driver"
)

// maxLabel is the length of a note and of a reason, in bytes.
const maxLabel = 255

// claimLabels are what others see of a claim: who holds the lock, and what for. They are shown, and never compared.
type claimLabels struct {
	owner, note string
}

func (l *claimLabels) addFlags(c *cobra.Command) {
	c.Flags().Var(&labelFlag{&l.owner, driver.MaxOwner}, "owner",
		"show `NAME` as the holder (default user@host, the program and its process id)")
	c.Flags().Var(&labelFlag{&l.note, maxLabel}, "note",
		"show `TEXT` next to the holder, such as the reason or a ticket (default the name of the command)")
}

// ownerOrDefault is the owner of the claims.
func (l *claimLabels) ownerOrDefault() string { return cmp.Or(l.owner, ownerName()) }

// labelFlag is the value of a flag that others will see: one line of printable text.
type labelFlag struct {
	target *string
	limit  int
}

func (f *labelFlag) Type() string   { return "text" }
func (f *labelFlag) String() string { return "" }

// Set takes one line of printable text, because it is shown to operators in tables.
func (f *labelFlag) Set(s string) error {
	switch {
	case strings.TrimSpace(s) == "":
		return fmt.Errorf("give a text, or leave the flag out")
	case len(s) > f.limit:
		return fmt.Errorf("the text has %d bytes, and may have %d", len(s), f.limit)
	case !utf8.ValidString(s), strings.ContainsFunc(s, isNotPrintable):
		return fmt.Errorf("the text must be one line of printable characters")
	}
	*f.target = s
	return nil
}

func isNotPrintable(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }

// ownerName is the owner of this program's claims: user, host, program and process id.
var ownerName = sync.OnceValue(func() string {
	suffix := fmt.Sprintf(" holdfast[%d]", os.Getpid())
	name := operatorName()
	return strings.ToValidUTF8(name[:min(len(name), driver.MaxOwner-len(suffix))], "?") + suffix
})

// operatorName is user@host.
func operatorName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return userName() + "@" + host
}

// userLookupTimeout bounds the search for the user's name: it may ask a directory server, and no lock may wait for
// that.
const userLookupTimeout = time.Second

// userName is the name of the user of this process, or its number if it has no name.
func userName() string {
	found := make(chan string, 1)
	go func() {
		if u, err := user.Current(); err == nil {
			found <- u.Username
		}
		close(found)
	}()
	select {
	case name := <-found:
		if name != "" {
			return name
		}
	case <-time.After(userLookupTimeout):
	}
	return strconv.Itoa(os.Getuid())
}
