package cli

import (
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
)

// progressVariable names the descriptor on which a command says that it gets on.
const progressVariable = "HOLDFAST_PROGRESS_FD"

// progressFlags are the flags of run and once that tie the lease to the progress of the command.
type progressFlags struct {
	progress     time.Duration // 0: a command that hangs keeps the lease
	progressFile string
}

func (f *progressFlags) addProgressFlags(c *cobra.Command) {
	c.Flags().DurationVar(&f.progress, "progress", 0,
		"end the command if it writes nothing to the descriptor HOLDFAST_PROGRESS_FD for this long")
	c.Flags().Var(nonEmptyString{&f.progressFile}, "progress-file",
		"with --progress: a change of `FILE` counts, too, such as a log that the command writes")
}

// checkProgressFlags reports values that make no sense.
func (f *progressFlags) checkProgressFlags(c *cobra.Command) error {
	switch {
	case f.progressFile != "" && f.progress == 0:
		return usageError("--progress-file needs --progress, the longest time without a change")
	case c.Flags().Changed("progress") && f.progress < time.Second:
		return usageError("--progress must be at least %v", time.Second)
	}
	return nil
}

const (
	// a command that writes without end is noticed this often; what it writes meanwhile waits in the pipe
	progressPause = 10 * time.Millisecond
	// how often the file is looked at: a twentieth of --progress, within these bounds
	minFileInterval = 50 * time.Millisecond
	maxFileInterval = 5 * time.Second
)

// progressWatch notices the progress of the command. A goroutine reads what the command writes, and another one looks
// at the file, which may be on a file system that hangs: then there is no progress.
type progressWatch struct {
	flags       progressFlags
	read, write *os.File
	noted       chan struct{} // buffered: has an element when there was progress
	last        atomic.Int64  // when, as guard.BoottimeNow counts
}

// newProgressWatch returns nil without --progress.
func newProgressWatch(flags progressFlags) (*progressWatch, error) {
	if flags.progress == 0 {
		return nil, nil
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("no pipe can be opened for --progress: %s", rootCause(err))
	}
	p := &progressWatch{flags: flags, read: read, write: write, noted: make(chan struct{}, 1)}
	p.last.Store(int64(guard.BoottimeNow()))
	return p, nil
}

// passTo makes the guard and the command inherit the end of the pipe to which the command writes, and returns the
// environment that names it. That end is to be closed here once the guard has started.
func (p *progressWatch) passTo(env []string) ([]string, error) {
	if p == nil {
		return env, nil
	}
	fd, err := guard.PassOn(p.write)
	return replaceVariables(env, [][2]string{{progressVariable, strconv.Itoa(fd)}}), err
}

func (p *progressWatch) closeWrite() {
	if p != nil {
		guard.CloseAll(p.write)
	}
}

// start calls note at each sign of progress, until stop is called.
func (p *progressWatch) start(note func()) (stop func()) {
	if p == nil {
		return func() {}
	}
	noteNow := func() {
		p.last.Store(int64(guard.BoottimeNow()))
		note()
		select {
		case p.noted <- struct{}{}:
		default:
		}
	}
	ended := make(chan struct{})
	go p.watchPipe(noteNow)
	if p.flags.progressFile != "" {
		go p.watchFile(noteNow, ended)
	}
	return func() {
		close(ended)
		guard.CloseAll(p.read)
	}
}

// watchPipe notes progress whenever the command writes to its pipe, at most once per progressPause.
func (p *progressWatch) watchPipe(note func()) {
	buffer := make([]byte, 4096)
	for {
		if _, err := p.read.Read(buffer); err != nil {
			return
		}
		note()
		time.Sleep(progressPause)
	}
}

// watchFile notes progress whenever the file has changed. It looks some twenty times per interval of --progress.
func (p *progressWatch) watchFile(note func(), ended <-chan struct{}) {
	ticker := time.NewTicker(min(max(p.flags.progress/20, minFileInterval), maxFileInterval))
	defer ticker.Stop()
	for before := describeFile(p.flags.progressFile); ; {
		select {
		case <-ticker.C:
		case <-ended:
			return
		}
		if now := describeFile(p.flags.progressFile); now != before {
			before = now
			note()
		}
	}
}

// describeFile changes when a file changes, appears, goes, or is replaced by another one.
func describeFile(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return fmt.Sprint(info.ModTime().UnixNano(), info.Size())
}

// changes has an element when there was progress.
func (p *progressWatch) changes() <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.noted
}

// endsAt reports whether a lease that ends at that time, as guard.BoottimeNow counts, ends for want of progress.
func (p *progressWatch) endsAt(expiry, slack time.Duration) bool {
	return p != nil && expiry >= time.Duration(p.last.Load())+p.flags.progress-min(slack, p.flags.progress/10)
}
