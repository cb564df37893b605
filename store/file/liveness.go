package file

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// livenessFile is how others know that a client lives: a file of its own, under its session's name, that it keeps locked
// (flock) for as long as it is open. The kernel lets go of the lock when the process ends, however it ends, and no
// sooner: a stopped process keeps it. No process id is involved, so clients in different containers can judge each
// other.
//
// The file is locked before it gets its name, so nobody ever sees the file of a living client unlocked; and a name
// is used once, so whoever was gone once is gone for ever. Hence a dead one's file can be removed at any time, by
// anybody, and a missing file means the same as an unlocked one.
type livenessFile struct {
	fsys
	clients int // the directory
	session string
	handle  int
}

// sessionLength is that of crypto/rand.Text. A session begins with a tag of the boot in which its client lives, as far as that
// client knows.
const (
	sessionLength = 26
	tagLength     = 8
)

func bootTag(boot string) string {
	sum := sha256.Sum256([]byte(boot))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:tagLength])
}

// announceClient makes this client present, under another session than before if it was. tmp is a directory on the same file system.
func (p *livenessFile) announceClient(tmp int, boot string) error {
	session := bootTag(boot) + strings.ToLower(rand.Text()[tagLength:])
	handle, err := p.createLocked(tmp, session)
	if err != nil {
		return describeError("create a presence file", err)
	}
	if err := p.renameEntry(tmp, session, p.clients, session); err != nil {
		p.closeHandle(handle)
		_ = p.removeFile(tmp, session)
		return describeError("create a presence file", err)
	}
	if p.handle >= 0 {
		p.endLiveness()
	}
	p.session, p.handle = session, handle
	return nil
}

// isAnyoneAlive reports whether any client is there of those who know this boot by that id.
func (p *livenessFile) isAnyoneAlive(boot string) (bool, error) {
	names, err := p.listNames(p.clients)
	if err != nil {
		return false, describeError("list clients", err)
	}
	for _, name := range names {
		if !isValidSession(name) || !strings.HasPrefix(name, bootTag(boot)) {
			continue
		}
		switch locked, err := p.isLocked(p.clients, name); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return false, describeError("look for other clients", err)
		case locked:
			return true, nil
		}
	}
	return false, nil
}

// shareFile is the presence for another process: this client counts as there until that one has closed it, too.
func (p *livenessFile) shareFile() (*os.File, error) {
	f, err := p.shareHandle(p.handle)
	if err != nil {
		return nil, describeError("share the presence file", err)
	}
	return f, nil
}

// isRemoved reports whether somebody has removed the file, so that others take this client for gone.
func (p *livenessFile) isRemoved() bool {
	there, err := p.entryExists(p.clients, p.session)
	return err == nil && !there
}

// endLiveness ends it: from now on this client counts as gone.
func (p *livenessFile) endLiveness() {
	_ = p.removeFile(p.clients, p.session)
	p.closeHandle(p.handle)
}

// isDead reports whether the client of a session is surely gone.
func (p *livenessFile) isDead(session string) bool {
	if session == p.session || !isValidSession(session) {
		return false
	}
	locked, err := p.isLocked(p.clients, session)
	return err == nil && !locked || errors.Is(err, fs.ErrNotExist)
}

// isValidSession keeps what a record says from becoming a path.
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

// removeDeadFiles removes the presence files of clients that died.
func (p *livenessFile) removeDeadFiles() error {
	names, err := p.listNames(p.clients)
	if err != nil {
		return fmt.Errorf("list clients: %w", err)
	}
	for _, name := range names {
		if isValidSession(name) && p.isDead(name) {
			_ = p.removeFile(p.clients, name)
		}
	}
	return nil
}
