//go:build unix

package guard

import (
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// The signal listener is a process in the process group of the wrapper and the command. It receives what is sent to
// the whole group, by the terminal or by timeout for instance, and nothing that is sent to the wrapper alone. By
// asking it the wrapper learns which signals the command has received already. If it does not know, or answers too
// late on a busy machine, the command may receive a signal twice, which is no worse than without a listener. The same
// is true of the first moment of a command, when there is no listener yet.

const (
	listenerTimeout = 3 * time.Second       // for an answer
	listenerDelay   = 10 * time.Millisecond // before an answer, for a signal that is still on its way
	signalMemory    = 5 * time.Second       // how long a received signal counts as the one in question
)

// markerSignal is the signal that the listener sends to itself before it answers. The kernel delivers pending signals
// in the order of their numbers, and this is the last one. So when it arrives, everything that the group received
// before has been delivered to a thread of the listener, however late it was scheduled. That thread may have been
// interrupted before the Go runtime knew of the signal. Handlers block all signals, so when one that is sent to that
// thread alone arrives, the handler before it has ended.
const markerSignal = LastSignal

// Listener is the wrapper's end of the listener. A nil one knows nothing.
type Listener struct {
	pid                int
	questions, answers *os.File
	broken             bool // it did not answer in time: it was stopped, or it has ended
}

// startListener starts the listener. It returns nil if that fails.
func startListener(program string) *Listener {
	questionsRead, questions, err1 := os.Pipe()
	answers, answersWrite, err2 := os.Pipe()
	defer CloseAll(questionsRead, answersWrite)
	pid, err := 0, err1
	if err == nil && err2 == nil {
		files := []uintptr{questionsRead.Fd(), answersWrite.Fd()}
		pid, err = syscall.ForkExec(program, []string{ListenerName}, &syscall.ProcAttr{Env: os.Environ(), Files: files})
	}
	if err != nil || err2 != nil {
		CloseAll(questions, answers)
		return nil
	}
	return &Listener{pid: pid, questions: questions, answers: answers}
}

// GroupHadSignal reports whether the group received a signal a moment ago. known is false if there is no answer.
func (l *Listener) GroupHadSignal(sig syscall.Signal) (had, known bool) {
	if l == nil || l.broken {
		return false, false
	}
	until := time.Now().Add(listenerTimeout)
	_ = l.questions.SetWriteDeadline(until)
	_ = l.answers.SetReadDeadline(until)
	var answer [1]byte
	_, err := l.questions.Write([]byte{byte(sig)})
	if err == nil {
		_, err = io.ReadFull(l.answers, answer[:])
	}
	l.broken = err != nil
	return answer[0] == 1, !l.broken
}

// ClosePipes lets the listener end.
func (l *Listener) ClosePipes() {
	if l != nil {
		CloseAll(l.questions, l.answers)
	}
}

// runListener is the listener's whole life: it reads questions from its standard input until the wrapper closes it.
func runListener() int {
	signals := make(chan os.Signal, 1024)
	for n := syscall.Signal(1); n <= LastSignal; n++ {
		if !UncaughtSignals[n] {
			signal.Notify(signals, n)
		}
	}
	NameProcess(ListenerName)
	questions := make(chan syscall.Signal)
	go readQuestions(questions)
	g := groupSignals{signals: signals, received: map[syscall.Signal]time.Time{}}
	for {
		select {
		case sig := <-signals:
			g.noteSignal(sig.(syscall.Signal))
		case sig, more := <-questions:
			if !more {
				return 0
			}
			answer := byte(0)
			if g.takeSignal(sig) {
				answer = 1
			}
			if _, err := os.Stdout.Write([]byte{answer}); err != nil {
				return exitUnavailable
			}
		}
	}
}

// groupSignals are the signals that the group has received.
type groupSignals struct {
	signals  <-chan os.Signal
	received map[syscall.Signal]time.Time // the last time of each
	overdue  int                          // markers that did not arrive in time
}

// takeSignal reports whether the group received a signal a moment ago, and forgets it.
func (g *groupSignals) takeSignal(sig syscall.Signal) bool {
	g.awaitPending()
	at, ok := g.received[sig]
	delete(g.received, sig)
	return ok && time.Since(at) < signalMemory
}

func (g *groupSignals) noteSignal(sig syscall.Signal) {
	if sig == markerSignal && g.overdue > 0 {
		g.overdue--
		return
	}
	g.received[sig] = time.Now()
}

// awaitPending notes the signals that were sent to this process before the call.
func (g *groupSignals) awaitPending() {
	timeout := time.After(listenerTimeout / 2)
	if !g.awaitMarker(syscall.Kill(os.Getpid(), markerSignal), timeout) {
		return
	}
	for _, thread := range ownThreads() {
		if !g.awaitMarker(signalThread(thread, markerSignal), timeout) {
			return
		}
	}
}

// awaitMarker notes signals until the marker arrives that was just sent. It reports false after the timeout. A thread
// that has ended since has no handler that could be late.
func (g *groupSignals) awaitMarker(sendErr error, timeout <-chan time.Time) bool {
	for sendErr == nil {
		select {
		case sig := <-g.signals:
			if sig == markerSignal {
				return true
			}
			g.noteSignal(sig.(syscall.Signal))
		case <-timeout:
			g.overdue++
			return false
		}
	}
	return true
}

// readQuestions passes on each question after listenerDelay.
func readQuestions(questions chan<- syscall.Signal) {
	defer close(questions)
	var question [1]byte
	for {
		if _, err := io.ReadFull(os.Stdin, question[:]); err != nil {
			return
		}
		time.Sleep(listenerDelay)
		questions <- syscall.Signal(question[0])
	}
}
