//go:build linux || darwin

package file

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/holdfast-go/holdfast/driver"
)

// runMember is the main function of a process of a user who shares a store. args are the group, and those who are in it
// by the list of users. It reads one command per line, and prints one line per command. It has the most private umask.
func runMember(dir string, args []string) error {
	syscall.Umask(0o077)
	opts := &Options{Group: args[0], isMember: func(uid, _ int) bool { return slices.Contains(args[1:], strconv.Itoa(uid)) }}
	s, err := New(context.Background(), dir, opts)
	fmt.Println("opened", err)
	if err != nil {
		return nil
	}
	defer s.Close()
	m := &member{store: s.(*store), granted: map[string]driver.Grant{}}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		verb, name, _ := strings.Cut(lines.Text(), " ")
		fmt.Println(m.do(context.Background(), verb, name))
	}
	return nil
}

// member is a client of a shared store.
type member struct {
	store   *store
	granted map[string]driver.Grant
}

// do carries out one command on a lock, and returns what became of it.
func (m *member) do(ctx context.Context, verb, name string) any {
	switch verb {
	case "acquire", "wait":
		c := claimOf(name)
		c.Owner, c.Wait = fmt.Sprint("user ", os.Geteuid()), verb == "wait"
		g, err := m.store.Acquire(ctx, c)
		m.granted[name] = g
		return err
	case "renew":
		var result error
		m.store.Renew(ctx, []driver.Grant{m.granted[name]}, func(_ int, r driver.Renewal) { result = r.Err })
		return result
	case "release":
		return m.store.Release(ctx, m.granted[name].Claim, m.granted[name].Ref)
	case "holder", "break":
		lock, err := m.store.Inspect(ctx, name)
		switch {
		case err != nil || len(lock.Holders) != 1:
			return fmt.Sprint(len(lock.Holders), " holders ", err)
		case verb == "holder":
			return lock.Holders[0].Owner
		}
		return m.store.Break(ctx, name, lock.Holders[0].Ref, driver.Break{Mode: driver.BreakForce})
	case "count": // name is how often
		n, err := strconv.Atoi(name)
		if err == nil {
			err = m.store.table.openStore(ctx, true)
		}
		for range n {
			if err == nil {
				err = incrementCounter(m.store.table)
			}
		}
		return err
	}
	return "no such command"
}

func stopProcess(p *os.Process) { _ = p.Signal(syscall.SIGSTOP) }

func continueProcess(p *os.Process) { _ = p.Signal(syscall.SIGCONT) }
