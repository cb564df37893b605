package main

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
// late on a busy machine, the command may receive a signal twice, which is no worse than without a listener.

// listenerName is the listener's name in process lists. It does not contain this program's name, so that somebody who
// sends a signal to all processes of that name does not reach the listener.
const listenerName = "signal-listener"

const (
	listenerTimeout = time.Second           // for an answer
	listenerDelay   = 10 * time.Millisecond // before an answer, for a signal that is still on its way
	signalMemory    = 5 * time.Second       // how long a received signal counts as the one in question
)

// signalListener is the wrapper's end of the listener. A nil one knows nothing.
type signalListener struct {
	questions, answers *os.File
	broken             bool // it did not answer in time: it was stopped, or it has ended
}

// startListener starts the listener. It returns nil if that fails.
func startListener(program string) *signalListener {
	questionsRead, questions, err1 := os.Pipe()
	answers, answersWrite, err2 := os.Pipe()
	defer closeAll(questionsRead, answersWrite)
	err := err1
	if err == nil && err2 == nil {
		files := []uintptr{questionsRead.Fd(), answersWrite.Fd()}
		_, err = syscall.ForkExec(program, []string{listenerName}, &syscall.ProcAttr{Env: os.Environ(), Files: files})
	}
	if err != nil || err2 != nil {
		closeAll(questions, answers)
		return nil
	}
	return &signalListener{questions: questions, answers: answers}
}

// groupHadSignal asks whether the group received a signal a moment ago. known is false if there is no answer.
func (l *signalListener) groupHadSignal(sig syscall.Signal) (had, known bool) {
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

// closePipes lets the listener end.
func (l *signalListener) closePipes() {
	if l != nil {
		closeAll(l.questions, l.answers)
	}
}

// runListener is the listener's whole life: it reads questions from its standard input until the wrapper closes it.
func runListener() int {
	signals := make(chan os.Signal, 1024)
	for n := syscall.Signal(1); n <= lastSignal; n++ {
		if !uncaughtSignals[n] {
			signal.Notify(signals, n)
		}
	}
	nameProcess(listenerName)
	questions := make(chan syscall.Signal)
	go readQuestions(questions)
	received := map[syscall.Signal]time.Time{}
	for {
		select {
		case sig := <-signals:
			received[sig.(syscall.Signal)] = time.Now()
		case sig, more := <-questions:
			if !more {
				return 0
			}
			for len(signals) > 0 {
				received[(<-signals).(syscall.Signal)] = time.Now()
			}
			answer := byte(0)
			if at, ok := received[sig]; ok && time.Since(at) < signalMemory {
				answer = 1
			}
			delete(received, sig)
			if _, err := os.Stdout.Write([]byte{answer}); err != nil {
				return exitUnavailable
			}
		}
	}
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
