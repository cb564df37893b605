// Package story helps to tell an example step by step, with processes that are stopped and killed.
package story

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// roleVariable says which part of the story a process plays. The process that tells the story has none.
const roleVariable = "STORY_ROLE"

// Main is the main function of an example: tell tells the story, and act plays a role of it in a process of its own.
// act is nil for a story without roles.
func Main(tell func(out io.Writer) error, act func(ctx context.Context, role string) error) {
	run := func() error { return tell(os.Stdout) }
	if role, ok := Role(); ok {
		run = func() error { return act(context.Background(), role) }
	}
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(1)
	}
}

// Story is an example that is being told.
type Story struct {
	out     io.Writer
	start   time.Time
	signals chan os.Signal

	mu   sync.Mutex
	ends []func()
}

// New begins a story, whose steps are printed to out. A SIGINT (Ctrl-C) or SIGTERM ends the story, and then the
// process.
func New(out io.Writer, title string) *Story {
	fmt.Fprintln(out, title)
	s := &Story{out: out, start: time.Now(), signals: make(chan os.Signal, 1)}
	signal.Notify(s.signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		if sig, ok := <-s.signals; ok {
			s.mu.Lock() // and it stays locked, so that nothing is started any more, and main does not return
			s.runEnds()
			os.Exit(128 + int(sig.(syscall.Signal)))
		}
	}()
	return s
}

// Tell prints one step.
func (s *Story) Tell(format string, args ...any) {
	fmt.Fprintf(s.out, "%6.2fs  %s\n", time.Since(s.start).Seconds(), fmt.Sprintf(format, args...))
}

// AtEnd calls f when the story ends, after those that were added later.
func (s *Story) AtEnd(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = append(s.ends, f)
}

// End ends what the story has started.
func (s *Story) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	signal.Stop(s.signals)
	close(s.signals)
	s.runEnds()
}

// runEnds is called with mu held.
func (s *Story) runEnds() {
	for _, end := range slices.Backward(s.ends) {
		end()
	}
}

// Role returns the role of this process, and false for the process that tells the story.
func Role() (string, bool) {
	role := os.Getenv(roleVariable)
	return role, role != ""
}

// Say is for a process with a role: it prints a line, which the story reads.
func Say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// Actor is a process with a role.
type Actor struct {
	Name  string
	cmd   *exec.Cmd
	story *Story
	in    io.WriteCloser
	lines chan string
}

// Start starts this program again in a role. env are more environment variables. The process ends with the story.
func (s *Story) Start(name, role string, env ...string) (*Actor, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), roleVariable+"="+role), env...)
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	if err := servertest.StartProcess(cmd); err != nil {
		return nil, err
	}
	a := &Actor{Name: name, cmd: cmd, story: s, in: in, lines: make(chan string, 100)}
	go func() {
		defer close(a.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			a.lines <- lines.Text()
		}
	}()
	s.AtEnd(a.Kill)
	return a, nil
}

// Hear waits until the actor says a line that begins with some words, tells all that it says until then, and returns
// the line. It gives up after a minute.
func (a *Actor) Hear(words string) (string, error) {
	_, line, err := HearAny(words, a)
	return line, err
}

// HearAny is Hear for several actors: it returns the first one that says such a line.
func HearAny(words string, actors ...*Actor) (*Actor, string, error) {
	var names []string
	limit := reflect.ValueOf(time.After(time.Minute))
	cases := []reflect.SelectCase{{Dir: reflect.SelectRecv, Chan: limit}}
	for _, a := range actors {
		names = append(names, a.Name)
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(a.lines)})
	}
	for {
		i, value, ok := reflect.Select(cases)
		if i == 0 {
			return nil, "", fmt.Errorf("%s did not say %q within a minute", strings.Join(names, " or "), words)
		}
		a := actors[i-1]
		if !ok {
			return nil, "", fmt.Errorf("%s has ended, and did not say %q", a.Name, words)
		}
		line := value.String()
		a.story.Tell("%s: %s", a.Name, line)
		if strings.HasPrefix(line, words) {
			return a, line, nil
		}
	}
}

// Ask orders the actor to do something, and hears it: see Order and Hear.
func (a *Actor) Ask(order, words string) (string, error) {
	if err := a.Order(order); err != nil {
		return "", err
	}
	return a.Hear(words)
}

// Order writes a line to the actor's standard input.
func (a *Actor) Order(line string) error {
	_, err := fmt.Fprintln(a.in, line)
	return err
}

// Stop stops the actor by SIGSTOP, like a long pause of a garbage collector or a virtual machine.
func (a *Actor) Stop() error { return a.cmd.Process.Signal(syscall.SIGSTOP) }

// Continue continues an actor that was stopped.
func (a *Actor) Continue() error { return a.cmd.Process.Signal(syscall.SIGCONT) }

// Kill kills the actor.
func (a *Actor) Kill() {
	_ = a.cmd.Process.Kill()
	_ = a.cmd.Wait()
}
