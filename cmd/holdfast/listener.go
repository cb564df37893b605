package main

import (
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// The listener is a process of this program's in the process group that this program and the command are in. It gets what is
// sent to the whole group, as by the terminal or by timeout, and nothing that is sent to this program alone: so by asking it this
// program learns which signals the command has had already. If it does not know, or is too slow on a machine that is too busy, the
// command has a signal twice, which is no worse than if there were no listener.

// listenerName is what it is called. By the name of this program, by which people send signals to it, it must not be found.
const listenerName = "signal-listener"

const (
	listenerTimeout = time.Second           // how long an answer may take
	listenerDelay   = 10 * time.Millisecond // between a signal and its being heard
	signalMemory    = 5 * time.Second       // how long a signal counts as the one that is asked for
)

// signalListener is this program's end of it. A nil one knows nothing.
type signalListener struct {
	questions, answers *os.File
	broken             bool // it did not answer in time: it was stopped, or it is gone
}

// startListener starts the listener.
func startListener(program string) *signalListener {
	ask, questions, err1 := os.Pipe()
	answers, tell, err2 := os.Pipe()
	defer closeAll(ask, tell)
	err := err1
	if err == nil && err2 == nil {
		_, err = syscall.ForkExec(program, []string{listenerName}, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{ask.Fd(), tell.Fd()}})
	}
	if err != nil || err2 != nil {
		closeAll(questions, answers)
		return nil
	}
	return &signalListener{questions: questions, answers: answers}
}

// groupHadSignal learns whether the group had a signal a moment ago, if that is known.
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

// runListener is the listener's whole life: questions come from standard input, and end with this program's.
func runListener() int {
	signals := make(chan os.Signal, 1024)
	for n := syscall.Signal(1); n <= lastSignal; n++ {
		if !uncaughtSignals[n] {
			signal.Notify(signals, n)
		}
	}
	nameProcess(listenerName)
	questions := make(chan syscall.Signal)
	go func() {
		var question [1]byte
		for {
			if _, err := io.ReadFull(os.Stdin, question[:]); err != nil {
				close(questions)
				return
			}
			time.Sleep(listenerDelay)
			questions <- syscall.Signal(question[0])
		}
	}()
	got := map[syscall.Signal]time.Time{}
	for {
		select {
		case sig := <-signals:
			got[sig.(syscall.Signal)] = time.Now()
		case sig, more := <-questions:
			if !more {
				return 0
			}
			for len(signals) > 0 {
				got[(<-signals).(syscall.Signal)] = time.Now()
			}
			answer := byte(0)
			if at, ok := got[sig]; ok && time.Since(at) < signalMemory {
				answer = 1
			}
			delete(got, sig)
			if _, err := os.Stdout.Write([]byte{answer}); err != nil {
				return exitUnavailable
			}
		}
	}
}
