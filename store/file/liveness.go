package file

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"os"
	"strings"
)

// livenessFile is how other clients know that a client is alive. Each client has a file of its own, named after its
// session, that it keeps locked (flock) as long as it has the file open. The kernel releases the lock when the
// process ends, in whichever way, and not earlier: a stopped process keeps it. No process id is involved, so clients
// in different containers can check each other.
//
// The file is locked before it gets its name, so no client ever sees the file of a live client unlocked. And a name
// is used only once, so a client that is dead remains dead. Hence any client may remove the file of a dead one at any
// time, and a missing file means the same as an unlocked one.
type livenessFile struct {
	fsys
	clients int // handle of the directory of all liveness files
	session string
	handle  int
}

// sessionLength is the length of a text from crypto/rand.Text. A session begins with a tag of the boot in which its
// client lives, as far as that client knows.
const (
	sessionLength = 26
	tagLength     = 8
)

// bootTag is a short hash of a boot id, with the characters that a session may have.
func bootTag(boot string) string {
	sum := sha256.Sum256([]byte(boot))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:tagLength])
}

// announceClient makes the file, under a new session. If there was one before, it is removed afterwards. tmp is a
// directory on the same file system, where the file is made and locked.
func (l *livenessFile) announceClient(tmp int, boot string) error {
	session := bootTag(boot) + strings.ToLower(rand.Text()[tagLength:])
	handle, err := l.createLocked(tmp, session)
	if err != nil {
		return describeError("create a liveness file", err)
	}
	if err := l.renameEntry(tmp, session, l.clients, session); err != nil {
		l.closeHandle(handle)
		_ = l.removeFile(tmp, session)
		return describeError("create a liveness file", err)
	}
	if l.handle >= 0 {
		l.endLiveness()
	}
	l.session, l.handle = session, handle
	return nil
}

// isAnyoneAlive reports whether any client is alive that knows this boot by the given id.
func (l *livenessFile) isAnyoneAlive(boot string) (bool, error) {
	names, _, err := l.listNames(l.clients)
	if err != nil {
		return false, describeError("list clients", err)
	}
	for _, name := range names {
		if !isValidSession(name) || !strings.HasPrefix(name, bootTag(boot)) {
			continue
		}
		switch locked, err := l.isLocked(l.clients, name); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return false, describeError("look for other clients", err)
		case locked:
			return true, nil
		}
	}
	return false, nil
}

// shareFile returns the open file for another process. This client counts as alive until that process has closed it,
// too.
func (l *livenessFile) shareFile() (*os.File, error) {
	f, err := l.shareHandle(l.handle)
	if err != nil {
		return nil, describeError("share the liveness file", err)
	}
	return f, nil
}

// isRemoved reports whether the file was removed, so that other clients take this one for dead.
func (l *livenessFile) isRemoved() bool {
	there, err := l.entryExists(l.clients, l.session)
	return err == nil && !there
}

// endLiveness removes and closes the file. From then on this client counts as dead.
func (l *livenessFile) endLiveness() {
	_ = l.removeFile(l.clients, l.session)
	l.closeHandle(l.handle)
}

// isDead reports whether the client of a session is certainly dead.
func (l *livenessFile) isDead(session string) bool {
	if session == l.session || !isValidSession(session) {
		return false
	}
	locked, err := l.isLocked(l.clients, session)
	return err == nil && !locked || errors.Is(err, fs.ErrNotExist)
}

// isValidSession keeps the session in a record from being used as a path.
func isValidSession(session string) bool {
	if len(session) != sessionLength {
		return false
	}
	for i := range len(session) {
		if c := session[i]; (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return false
		}
	}
	return true
}

// maxDeadChecks is how many liveness files a client looks at when it starts.
const maxDeadChecks = 16

// removeDeadFiles removes liveness files of dead clients. It looks at some of the files, and at others each time: where
// hundreds of clients start together, each would look at those of all the others.
func (l *livenessFile) removeDeadFiles() error {
	names, _, err := l.listNames(l.clients)
	if err != nil {
		return fmt.Errorf("list clients: %w", err)
	}
	if len(names) == 0 {
		return nil
	}
	first := mathrand.IntN(len(names))
	for i := range min(len(names), maxDeadChecks) {
		if name := names[(first+i)%len(names)]; isValidSession(name) && l.isDead(name) {
			_ = l.removeFile(l.clients, name)
		}
	}
	return nil
}
