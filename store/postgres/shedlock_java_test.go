package postgres

import (
	"bytes"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storetest"
)

// maven runs the test with the real ShedLock. CI has no Maven.
var maven = flag.Bool("maven", false, "test with the real ShedLock, which Maven fetches")

// TestShedLockItself: the real ShedLock, in a process of its own, and our clients exclude each other, and both
// make progress. Each increments a number in a file in two steps, and none sees the state between them.
func TestShedLockItself(t *testing.T) {
	if !*maven {
		t.Skip("run it with -maven, where Maven is")
	}
	rounds := 50
	if *prove {
		rounds = 1000
	}
	server, s, _ := startShedLock(t, 0)
	dir := t.TempDir()
	file, stop := filepath.Join(dir, "number"), filepath.Join(dir, "stop")
	if err := os.WriteFile(file, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	number := func() int {
		text, err := os.ReadFile(file)
		n, perr := strconv.Atoi(string(text))
		if err := errors.Join(err, perr); err != nil {
			t.Fatal("two held at a time: ", err)
		}
		return n
	}
	peer := osexec.CommandContext(t.Context(), "java", "-cp", storetest.ClassPath(t, "testdata/pom.xml"),
		"testdata/Peer.java",
		"jdbc:postgresql://"+server.Addr+"/postgres?user=test", "m", file, stop)
	var said bytes.Buffer
	peer.Stdout, peer.Stderr = &said, &said
	if err := peer.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() { over <- peer.Wait() }()
	ours, theirs, refused := 0, 0, 0
	for ; min(ours, theirs) < rounds && len(over) == 0; time.Sleep(rand.N(10 * time.Millisecond)) {
		c := mutexClaim("m", time.Minute)
		c.Wait = rand.N(8) == 0
		_, err := s.Acquire(t.Context(), c)
		if errors.Is(err, driver.ErrHeld) {
			refused++
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		n := number()
		theirs = n - ours
		err = os.WriteFile(file, nil, 0o600)
		time.Sleep(rand.N(5 * time.Millisecond))
		if err = errors.Join(err, os.WriteFile(file, []byte(strconv.Itoa(n+1)), 0o600),
			s.Release(t.Context(), c, "")); err != nil {
			t.Fatal(err)
		}
		ours++
	}
	if err := errors.Join(os.WriteFile(stop, nil, 0o600), <-over); err != nil {
		t.Fatalf("the peer: %v\n%s", err, said.Bytes())
	}
	_, words, _ := strings.Cut(said.String(), "refused ")
	theirRefusals, err := strconv.Atoi(strings.TrimSpace(words))
	if err != nil || theirRefusals == 0 || refused == 0 {
		t.Errorf("the two hardly contended: we were refused %d times, and it says: %s", refused, said.Bytes())
	}
	t.Logf("%d grants to ShedLock and %d to us, never two at a time; it was refused %d times, and we %d times",
		number()-ours, ours, theirRefusals, refused)
}
