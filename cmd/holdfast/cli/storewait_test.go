//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
	"github.com/holdfast-go/holdfast/store/memory"
)

// TestStoreWaitLimit: --wait bounds the wait for the store too, and a longer --wait lengthens it.
func TestStoreWaitLimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, want string }{
		{"", "10s"},
		{"--wait 10m", "10m0s"},
		{"--wait 2s", "2s"},
		{"--wait 0", "10s"},
		{"--wait forever", "10s"},
		{"--store-wait 0", "0s"},
		{"--store-wait forever", "forever"},
		{"--store-wait 1m --wait 10m", "1m0s"},
		{"--store-wait 10m --wait 1m", "1m0s"},
		{"--store-wait forever --wait 1m", "1m0s"},
		{"--store-wait 1m --wait 0", "1m0s"},
	} {
		var wait waitLimit
		var f storeWaitFlag
		command := &cobra.Command{}
		command.Flags().Var(&wait, "wait", "")
		f.addStoreWaitFlag(command)
		if err := command.ParseFlags(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		if got := f.storeWaitLimit(command, wait); got.String() != c.want {
			t.Errorf("%q: the store is tried for %v, want %v", c.args, &got, c.want)
		}
	}
}

const unreachableNow = " holdfast: the store cannot be reached now; trying again "

// TestStoreStartsLate: a command whose store is not there yet says so once, and runs when it is.
func TestStoreStartsLate(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	etcd, err := etcdtest.Start(t.Context(), etcdtest.Options{Direct: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	for _, s := range []struct {
		url   string
		kill  func()
		start func() error
	}{
		{"redis://" + server.Addr, server.Kill, server.Restart},
		{"etcd://" + etcd.Members[0].Endpoint, etcd.Members[0].Kill, etcd.Members[0].Start},
	} {
		w := newWorkspace(t)
		w.store = s.url
		s.kill()
		var started []*startedProgram
		for _, args := range [][]string{{"run", "a", "echo", "ran"}, {"run", "-n", "b", "echo", "ran"},
			{"once", "k", "echo", "ran"}, {"acquire", "--ttl", "1m", "c"}} {
			args = append([]string{args[0], "--store-wait", "forever"}, args[1:]...)
			started = append(started, w.startProgram(args...))
		}
		for _, r := range started {
			w.awaitTrue("a line about the store", func() bool { return strings.Contains(r.readStderr(), unreachableNow) })
		}
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
		for _, r := range started {
			got := r.wait()
			if got.code != 0 || got.out == "" || strings.Count(got.err, "\n") != 1 {
				t.Errorf("%s: want exit 0, and one line about the store; %s", s.url, got.description)
			}
		}
	}
}

// TestStoreStaysAway: a command gives up a store that cannot be reached when --store-wait has passed, and with 0
// after the first attempt. --quiet leaves out the line about the attempts, not the error.
func TestStoreStaysAway(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	port, err := servertest.FreePort() // nobody listens on it
	if err != nil {
		t.Fatal(err)
	}
	nobody := "127.0.0.1:" + port
	for _, store := range []string{"redis://" + nobody, "postgres://user@" + nobody + "/db", "mysql://user@" + nobody + "/db", "nats://" + nobody + "/b", "etcd://" + nobody, "consul://" + nobody,
		"zookeeper://" + nobody} {
		w.store = store
		none := w.startProgram("run", "--store-wait", "0", "a", "touch", "ran")
		start := time.Now()
		const long = 3 * time.Second
		some := w.startProgram("run", "--wait", long.String(), "a", "touch", "ran")
		quiet := w.startProgram("run", "-q", "--store-wait", "1s", "a", "touch", "ran")
		none.wait().check(t, 69, "(store ")
		quiet.wait().check(t, 69, "(store ")
		got := some.wait()
		// On a slow machine, the first attempt may take all the time. Then there is no other one, and no line about it.
		attempts, last, more := strings.Cut(strings.TrimSpace(got.err), "\n")
		if !more {
			attempts, last = unreachableNow+"for up to 3s: ", attempts
		}
		if got.code != 69 || !strings.Contains(attempts, unreachableNow+"for up to 3s: ") ||
			!strings.Contains(last, " (store ") || strings.Contains(last, "\n") {
			t.Errorf("want exit 69, a line about the store and the error; %s", got.description)
		}
		if took := time.Since(start); took < long {
			t.Errorf("%s: given up after %v", store, took)
		}
	}
	if _, err := os.Stat(w.filePath("ran")); !errors.Is(err, os.ErrNotExist) {
		t.Error("the command was run")
	}
}

// TestStoreRefusesAtOnce: what another attempt cannot mend is not tried again.
func TestStoreRefusesAtOnce(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	sendRedis(t, server, "CONFIG", "SET", "requirepass", "secret")
	w := newWorkspace(t)
	for store, code := range map[string]int{
		"redis://:wrong@" + server.Addr:       69, // credentials
		"redis://" + server.Addr + "?prefx=a": 64, // a mistyped option
		"reddis://" + server.Addr:             64,
		"file:///dev/null":                    69,
	} {
		w.store = store
		w.runProgram("run", "--store-wait", "forever", "a", "true").check(t, code, "holdfast: ")
		w.runProgram("once", "--store-wait", "forever", "a", "true").check(t, code, "holdfast: ")
	}
}

// TestNoAnswerError: the error of a store that did not answer in time has no words of the deadline, and keeps the
// cause.
func TestNoAnswerError(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"context deadline exceeded":                               "the store does not answer",
		"context deadline exceeded: dial tcp: connection refused": "the store does not answer: dial tcp: connection refused",
		"a: context deadline exceeded: lookup x: not found":       "the store does not answer: a: lookup x: not found",
	} {
		if got := noAnswerError(errors.New(text)).Error(); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestLocalFault: what this machine lacks says nothing about the store. A process that may open no more files does
// not try again, and its usage was not wrong; what other processes may give back is waited for.
func TestLocalFault(t *testing.T) {
	t.Parallel()
	memory := memory.New(nil)
	for _, c := range []struct {
		err   error
		retry bool
		words string
	}{
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("socket", unix.EMFILE)}, false, "raise the limit (ulimit -n)"},
		{fmt.Errorf("%w: tls-ca: %w", driver.ErrInvalid, &os.PathError{Op: "open", Err: unix.EMFILE}), false,
			"raise the limit (ulimit -n)"},
		{errors.New(`rpc error: desc = "transport: dial tcp 127.0.0.1:2379: socket: too many open files"`), false,
			"raise the limit (ulimit -n)"},
		{fmt.Errorf("%w: tls-ca: %w", driver.ErrInvalid, &os.PathError{Op: "open", Err: unix.ENFILE}), true, "all programs"},
		{os.NewSyscallError("socket", unix.ENOMEM), true, "too little memory"},
	} {
		if exit := storeError(c.err); exit.code != exitUnavailable || !strings.Contains(exit.Error(), c.words) {
			t.Errorf("%v: exit %d, %v", c.err, exit.code, exit)
		}
		tries := 0
		store, err := openAgain(t.Context(), waitLimit{}, messageFlags{quiet: true},
			func(context.Context, time.Duration) (driver.Store, error) {
				if tries++; tries < 3 {
					return nil, storeError(&openError{&holdfast.Error{Op: "open", Err: c.err}})
				}
				return memory.Open(), nil
			})
		if store != nil {
			store.Close()
		}
		if c.retry != (err == nil) || !c.retry && tries != 1 {
			t.Errorf("%v: %v, after %d tries", c.err, err, tries)
		}
	}
	if fault := findLocalFault(errors.New("ERR too many open files on the server")); fault != nil {
		t.Errorf("the server's own lack counts as %q", fault.words)
	}
}
