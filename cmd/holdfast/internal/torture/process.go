package torture

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/system"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// process is a worker process, as the command sees it.
type process struct {
	worker      int
	incarnation int
	cmd         *exec.Cmd
	orders      io.WriteCloser
	marks       *marks
	stderr      limitedBuffer
	ready       chan struct{} // closed when the store is open, or the worker has failed
	done        chan struct{} // closed when the process is gone and all that it said was judged
	fatal       atomic.Pointer[string]
	expected    atomic.Bool // the command has ended it

	mu     sync.Mutex
	served map[int]bool // the locks on which it has had its turn since calm was asked for
}

// startProcess starts a worker. It dies with this process.
func (r *run) startProcess(worker, incarnation int) (*process, error) {
	t := task{Store: r.cfg.Store, Locks: r.locks, TTL: r.cfg.TTL, Pause: r.pause(), Long: r.cfg.LongHolds, Owner: fmt.Sprintf("torture worker %d", worker),
		Seed: r.cfg.Seed + uint64(1000*worker+incarnation), BootFit: r.linked, Marks: r.marksFile(worker, incarnation),
		Keys: r.judge.currentKeys()}
	if r.linked {
		t.Link = r.links[worker].Addr
	}
	p := &process{worker: worker, incarnation: incarnation, cmd: r.cfg.Worker(), ready: make(chan struct{}),
		done: make(chan struct{}), served: map[int]bool{}}
	var err error
	if p.marks, err = openMarks(t.Marks); err != nil {
		return nil, err
	}
	p.cmd.Stderr = &p.stderr
	leadGroup(p.cmd) // Ctrl-C is for the command, which then ends its workers
	reports, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.orders, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := servertest.StartProcess(p.cmd); err != nil {
		return nil, err
	}
	go p.readReports(r, reports)
	line, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	_, _ = p.orders.Write(append(line, '\n')) // a worker that has ended is seen from its reports
	return p, nil
}

func (r *run) marksFile(worker, incarnation int) string {
	return filepath.Join(r.dir, fmt.Sprintf("marks-%d-%d", worker, incarnation))
}

// readReports passes the reports of the worker on until the process has ended.
func (p *process) readReports(r *run, reports io.Reader) {
	ready := sync.OnceFunc(func() { close(p.ready) })
	lines := bufio.NewScanner(reports)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var said report
		if json.Unmarshal(lines.Bytes(), &said) != nil {
			continue // the last line of a killed process
		}
		switch said.Op {
		case opReady:
			ready()
		case opFatal:
			p.fatal.Store(&said.Text)
		case opServed:
			p.mu.Lock()
			p.served[said.Lock] = true
			p.mu.Unlock()
		default:
			if reply := r.judge.add(p.worker, p.incarnation, said); reply != nil {
				p.send(*reply)
			}
		}
	}
	_ = p.cmd.Wait() // how a worker ended is seen from what it said
	r.judge.workerGone(p.worker, p.incarnation, p.marks)
	p.marks.close()
	if !p.expected.Load() {
		r.workerFailed(p)
	}
	ready()
	close(p.done)
}

// send gives the worker an order. A worker that is gone needs none.
func (p *process) send(o order) {
	line, err := json.Marshal(o)
	if err == nil {
		_, _ = p.orders.Write(append(line, '\n'))
	}
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// kill ends the process at once, and waits until it is gone.
func (p *process) kill() {
	p.expected.Store(true)
	p.signal(syscall.SIGKILL)
	<-p.done
}

// stop asks the process to end, and kills it if it does not.
func (p *process) stop(limit time.Duration) {
	p.expected.Store(true)
	p.signal(system.SIGCONT)
	p.send(order{Op: "stop"})
	select {
	case <-p.done:
	case <-time.After(limit):
		p.kill()
	}
}

// unserved are the locks, by index, on which the worker has not had its turn since calm was asked for.
func (p *process) unserved(locks int) (missing []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range locks {
		if !p.served[l] {
			missing = append(missing, l)
		}
	}
	return missing
}

// failure says why the worker has ended by itself, or is empty.
func (p *process) failure() string {
	if text := p.fatal.Load(); text != nil {
		return *text
	}
	return p.stderr.String()
}

// limitedBuffer keeps the first 4 KiB of what a worker writes to its standard error: the panic, if there is one.
type limitedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *limitedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Write(p[:min(len(p), 4096-l.b.Len())])
	return len(p), nil
}

func (l *limitedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
