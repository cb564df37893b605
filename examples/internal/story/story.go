// Package story helps to tell an example step by step, with processes that are stopped and killed.
package story

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// roleVariable says which part of the story a process plays. The process that tells the story has none.
const roleVariable = "STORY_ROLE"

// Story is an example that is being told.
type Story struct {
	out   io.Writer
	start time.Time
	ends  []func()
}

// New begins a story, whose steps are printed to out.
func New(out io.Writer, title string) *Story {
	fmt.Fprintln(out, title)
	return &Story{out: out, start: time.Now()}
}

// Tell prints one step.
func (s *Story) Tell(format string, args ...any) {
	fmt.Fprintf(s.out, "%6.2fs  %s\n", time.Since(s.start).Seconds(), fmt.Sprintf(format, args...))
}

// AtEnd calls f when the story ends, after those that were added later.
func (s *Story) AtEnd(f func()) { s.ends = append(s.ends, f) }

// End ends what the story has started.
func (s *Story) End() {
	for i := len(s.ends) - 1; i >= 0; i-- {
		s.ends[i]()
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

// Hear waits until the actor says a line that begins with some words, tells all that it says until then, and returns the
// line. It gives up after a minute.
func (a *Actor) Hear(words string) (string, error) {
	limit := time.After(time.Minute)
	for {
		select {
		case line, ok := <-a.lines:
			if !ok {
				return "", fmt.Errorf("%s has ended, and did not say %q", a.Name, words)
			}
			a.story.Tell("%s: %s", a.Name, line)
			if strings.HasPrefix(line, words) {
				return line, nil
			}
		case <-limit:
			return "", fmt.Errorf("%s did not say %q within a minute", a.Name, words)
		}
	}
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
