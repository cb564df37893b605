package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/promtext"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/system"
)

// boundName is the label for the name of a lock: the name if the text has it or has room for it, otherwise "other".
func boundName(t *promtext.Text, name string) string {
	name = strings.ToValidUTF8(name, "?")
	keys, label := t.Keys(commandMetrics.started), promtext.Label("name", name)
	for _, key := range keys {
		if strings.Contains(key, label) {
			return name
		}
	}
	if len(keys) >= maxMetricsFileNames {
		return "other"
	}
	return name
}

var errForeignFile = errors.New("it exists, and this program has not written it, or somebody has changed it; " +
	"it was left as it is: remove it, or name another file")

// parseMetricsFile reads what this program has written.
func parseMetricsFile(data []byte) (*promtext.Text, error) {
	if len(bytes.Trim(data, "\x00")) == 0 { // a new file, or what a power cut has left
		return promtext.New(), nil
	}
	rest, ok := strings.CutPrefix(string(data), metricsFileHeader)
	t, isText := promtext.Parse(rest)
	if !ok || !isText {
		return nil, errForeignFile
	}
	return t, nil
}

// updateMetricsFile changes the text of a file, or makes the file. Readers see the old text or the new one, and
// processes that write the same file do so one after the other.
func updateMetricsFile(path string, change func(*promtext.Text)) error {
	dir, name := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	folder, err := os.Open(dir)
	if err != nil {
		return errors.New(rootCause(err))
	}
	defer folder.Close() // which ends the lock
	if err := lockFolder(folder); err != nil {
		return err
	}
	data, err := readOwnFile(path)
	if err != nil {
		return err
	}
	text, err := parseMetricsFile(data)
	if err != nil {
		return err
	}
	change(text)
	// hidden, and not called .prom, so that node_exporter does not read it
	staged := filepath.Join(dir, "."+name+".new")
	if err := replaceFile(staged, path, append([]byte(metricsFileHeader), text.Bytes()...)); err != nil {
		_ = os.Remove(staged)
		return errors.New(rootCause(err))
	}
	return nil
}

// lockFolder locks the folder of the file. A lock file would have to be left there.
func lockFolder(folder *os.File) error {
	for end := time.Now().Add(metricsFileLockTime); ; time.Sleep(5 * time.Millisecond) {
		err := system.TryLock(folder)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, system.ErrLocked):
			return fmt.Errorf("its folder cannot be locked: %w", err)
		case time.Now().After(end):
			return errors.New("other processes have locked its folder all the time")
		}
	}
}

// readOwnFile reads the file if it exists. It opens nothing but a regular file, because to open another one can wait.
func readOwnFile(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, errors.New(rootCause(err))
	case !info.Mode().IsRegular() || info.Size() > maxMetricsFileSize:
		return nil, errForeignFile
	}
	file, err := os.OpenFile(path, os.O_RDONLY|system.NonBlock|system.NoFollow, 0)
	if err != nil {
		return nil, errors.New(rootCause(err))
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxMetricsFileSize))
	if err != nil {
		return nil, errors.New(rootCause(err))
	}
	return data, nil
}

// replaceFile writes a file next to the other one, and then gives it its name. It does not wait until the disk has the
// data: no job should wait for that, and after a power cut the counters may begin at 0. Everybody may read the file,
// whatever the umask is: node_exporter has a user of its own.
func replaceFile(staged, path string, data []byte) error {
	_ = os.Remove(staged) // a process was killed before it could
	file, err := os.OpenFile(staged, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Chmod(0o644)
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(staged, path)
	}
	return err
}
