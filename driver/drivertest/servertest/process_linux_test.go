package servertest

import (
	"bufio"
	"os"
	"os/exec"
	"runtime"
	"testing"
)

// TestMain is also the process that is killed. It starts a child that ends in no other way, and prints nothing else.
func TestMain(m *testing.M) {
	if os.Getenv("SERVERTEST_CHILD") != "" {
		c := exec.Command("sh", "-c", "echo started; exec sleep 600")
		c.Stdout = os.Stdout
		started := make(chan error)
		go func() { // its thread ends with it, which the child outlives
			runtime.LockOSThread()
			started <- StartProcess(c)
		}()
		if <-started != nil {
			os.Exit(1)
		}
		select {}
	}
	os.Exit(m.Run())
}

// TestStartProcessKilled: a child ends together with a process that was killed.
func TestStartProcessKilled(t *testing.T) {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "SERVERTEST_CHILD=1")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := StartProcess(c); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "started" {
		t.Errorf("it said %q", lines.Text())
	}
	if err := c.Process.Kill(); err != nil {
		t.Error(err)
	}
	for lines.Scan() { // until the child has ended, too, which holds the other end
		t.Errorf("it said %q", lines.Text())
	}
	_ = c.Wait()
}
