package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/metrics"
)

// metricsText is the content of a metrics file: the text format of Prometheus, as this program writes it. A library
// that reads any such text would make this program larger by more than this file, for text that is only its own.
type metricsText struct {
	families []*metricsFamily
	byName   map[string]*metricsFamily
}

// metricsFamily is one metric with all its series, in the order of the file.
type metricsFamily struct {
	name, kind, help string
	keys             []string
	values           map[string]float64 // by the name and the labels of the series
}

func newMetricsText() *metricsText { return &metricsText{byName: map[string]*metricsFamily{}} }

func (t *metricsText) family(name, kind, help string) *metricsFamily {
	m := t.byName[name]
	if m == nil {
		m = &metricsFamily{name: name, values: map[string]float64{}}
		t.byName[name] = m
		t.families = append(t.families, m)
	}
	m.kind, m.help = kind, help
	return m
}

func (m *metricsFamily) set(key string, value float64) {
	if _, known := m.values[key]; !known {
		m.keys = append(m.keys, key)
	}
	m.values[key] = value
}

// set sets a series of a metric.
func (t *metricsText) set(m *metrics.Metric, key string, value float64) {
	t.family(m.Name, string(m.Type), m.Help).set(key, value)
}

// add adds to a series of a metric, which is 0 if the text does not have it.
func (t *metricsText) add(m *metrics.Metric, key string, value float64) {
	f := t.family(m.Name, string(m.Type), m.Help)
	f.set(key, f.values[key]+value)
}

// boundName is the label for the name of a lock: the name if the text has it or has room for it, otherwise "other".
func (t *metricsText) boundName(name string) string {
	name = strings.ToValidUTF8(name, "?")
	started := t.byName[commandMetrics.started.Name]
	if started == nil {
		return name
	}
	label := labelText("name", name)
	for _, key := range started.keys {
		if strings.Contains(key, label) {
			return name
		}
	}
	if len(started.keys) >= maxMetricsFileNames {
		return "other"
	}
	return name
}

// seriesKey is a series as the text names it. labels has the name and the value of each label.
func seriesKey(name string, labels ...string) string {
	if len(labels) == 0 {
		return name
	}
	var list []string
	for i := 0; i < len(labels); i += 2 {
		list = append(list, labelText(labels[i], labels[i+1]))
	}
	return name + "{" + strings.Join(list, ",") + "}"
}

var escapeLabel = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func labelText(name, value string) string { return name + `="` + escapeLabel.Replace(value) + `"` }

func formatValue(value float64) string { return strconv.FormatFloat(value, 'f', -1, 64) }

// bytes returns the text.
func (t *metricsText) bytes() []byte {
	var b bytes.Buffer
	b.WriteString(metricsFileHeader)
	for _, m := range t.families {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", m.name, m.help, m.name, m.kind)
		for _, key := range m.keys {
			fmt.Fprintf(&b, "%s %s\n", key, formatValue(m.values[key]))
		}
	}
	return b.Bytes()
}

var errForeignFile = errors.New("it exists, and this program has not written it, or somebody has changed it; " +
	"it was left as it is: remove it, or name another file")

// parseMetricsText reads a text that this program has written.
func parseMetricsText(data []byte) (*metricsText, error) {
	t := newMetricsText()
	if len(bytes.Trim(data, "\x00")) == 0 { // a new file, or what a power cut has left
		return t, nil
	}
	rest, ok := strings.CutPrefix(string(data), metricsFileHeader)
	if !ok || !strings.HasSuffix(rest, "\n") && rest != "" {
		return nil, errForeignFile
	}
	var current *metricsFamily
	var help string
	for line := range strings.Lines(rest) {
		line = strings.TrimSuffix(line, "\n")
		if text, ok := strings.CutPrefix(line, "# HELP "); ok {
			_, help, _ = strings.Cut(text, " ")
		} else if text, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(text, " ")
			current = t.family(name, kind, help)
		} else {
			space := strings.LastIndexByte(line, ' ')
			value, err := strconv.ParseFloat(line[space+1:], 64)
			if space < 0 || err != nil || current == nil || !strings.HasPrefix(line, current.name) {
				return nil, errForeignFile
			}
			current.set(line[:space], value)
		}
	}
	return t, nil
}

// updateMetricsFile changes the text of a file, or makes the file. Readers see the old text or the new one, and
// processes that write the same file do so one after the other.
func updateMetricsFile(path string, change func(*metricsText)) error {
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
	text, err := parseMetricsText(data)
	if err != nil {
		return err
	}
	change(text)
	// hidden, and not called .prom, so that node_exporter does not read it
	staged := filepath.Join(dir, "."+name+".new")
	if err := replaceFile(staged, path, text.bytes()); err != nil {
		_ = os.Remove(staged)
		return errors.New(rootCause(err))
	}
	return nil
}

// lockFolder locks the folder of the file. A lock file would have to be left there.
func lockFolder(folder *os.File) error {
	for end := time.Now().Add(metricsFileLockTime); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(int(folder.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
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
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
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
