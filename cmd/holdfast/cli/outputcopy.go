package cli

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
)

// outputCopy copies what a command writes to this program's output and error output, and keeps the end of it
// (--keep-output). The command writes to pipes. A nil one copies nothing.
type outputCopy struct {
	pipes  [2]outputPipe
	copied sync.WaitGroup

	mu   sync.Mutex
	end  []byte // the last bytes of both pipes, in the order in which they were read
	size int    // how many bytes are kept
}

// outputPipe is one pipe, and where it is copied to.
type outputPipe struct {
	read, write *os.File
	to          io.Writer
}

// newOutputCopy opens the pipes, or returns nil if nothing is to be kept. Nothing is copied before start.
func newOutputCopy(size int) (*outputCopy, error) {
	if size == 0 {
		return nil, nil
	}
	o := &outputCopy{size: size}
	for i, to := range []io.Writer{os.Stdout, os.Stderr} {
		read, write, err := os.Pipe()
		if err != nil {
			guard.CloseAll(o.pipes[0].read, o.pipes[0].write) // the first, if this is the second
			return nil, err
		}
		o.pipes[i] = outputPipe{read, write, to}
		expectBlocking(write)
	}
	return o, nil
}

// writeEnds are for the guard and the command. They are nil if nothing is copied.
func (o *outputCopy) writeEnds() (stdout, stderr *os.File) {
	if o == nil {
		return nil, nil
	}
	return o.pipes[0].write, o.pipes[1].write
}

// start begins to copy.
func (o *outputCopy) start() {
	if o == nil {
		return
	}
	for i := range o.pipes {
		o.copied.Go(o.pipes[i].copyAll(o.keep))
	}
}

// copyAll returns a function that copies the pipe until all its writers have ended, or until finish is called. When
// nobody reads the copy any more, it closes the pipe, so that the command receives a SIGPIPE as it would without the
// pipe.
func (p outputPipe) copyAll(keep func([]byte)) func() {
	return func() {
		defer p.read.Close()
		data := make([]byte, 32<<10)
		for {
			n, err := p.read.Read(data)
			keep(data[:n])
			if _, writeErr := p.to.Write(data[:n]); writeErr != nil {
				return
			}
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded):
				rest := p.readRest()
				keep(rest)
				_, _ = p.to.Write(rest)
				return
			case err != nil:
				return
			}
		}
	}
}

// maxPipeSize is how much a pipe can contain at most, unless a process of root has made it larger.
const maxPipeSize = 1 << 20

// readRest reads what is in the pipe now, without waiting for more: a process that is no descendant of the command may
// have the pipe open, and may write forever.
func (p outputPipe) readRest() []byte {
	rest := make([]byte, maxPipeSize)
	return rest[:readAvailable(p.read, rest)]
}

// keep adds to the end that is kept.
func (o *outputCopy) keep(data []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(data) >= o.size {
		o.end = append(o.end[:0], data[len(data)-o.size:]...)
		return
	}
	if over := len(o.end) + len(data) - o.size; over > 0 {
		o.end = append(o.end[:0], o.end[over:]...)
	}
	o.end = append(o.end, data...)
}

// finish copies what is still in the pipes. It is called when the command and its descendants have ended: all that they
// have written is in the pipes by then. The channel that it returns is closed when everything is copied, which takes
// as long as the reader of the copy takes.
func (o *outputCopy) finish() <-chan struct{} {
	done := make(chan struct{})
	if o == nil {
		close(done)
		return done
	}
	for _, p := range o.pipes {
		_ = p.read.SetReadDeadline(time.Now())
	}
	go func() {
		o.copied.Wait()
		close(done)
	}()
	return done
}

// lastBytes returns the end of the output, at most n bytes of what is kept. It does not begin inside a character.
func (o *outputCopy) lastBytes(n int) []byte {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	end := bytes.Clone(o.end[max(0, len(o.end)-n):])
	for i := 0; i < utf8.UTFMax && i < len(end) && len(end) == min(n, o.size); i++ {
		if utf8.RuneStart(end[i]) {
			return end[i:]
		}
	}
	return end
}
