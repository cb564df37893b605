package docs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// cronScript starts Debian's cron in a mount namespace of its own, at a minute of the clock that is about to begin.
// There the machine has the crontab, the programs and the mail of the test, and nothing else that cron would start.
const cronScript = `set -e
cd "$1"
mount --bind spool /var/spool/cron/crontabs
mount --bind empty /etc/cron.d
mount --bind table /etc/crontab
mount --bind opt /opt
mount --bind bin /usr/local/bin
mount -t overlay overlay -o "lowerdir=$1/sbin:/usr/sbin" /usr/sbin
mount -t tmpfs none /run
export LD_PRELOAD="$2" FAKETIME='@2026-11-28 02:59:58' TZ=UTC
exec cron -f`

// cronMachine is a machine on which cron runs.
type cronMachine struct {
	dir  string
	cron *exec.Cmd
}

// startCron starts cron with a crontab. The store is that of other machines, too.
func startCron(t *testing.T, store, crontab string) *cronMachine {
	t.Helper()
	faketime, err := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if err != nil || len(faketime) == 0 {
		t.Fatal("there is no libfaketime (Debian: apt-get install faketime)")
	}
	c := &cronMachine{dir: t.TempDir()}
	write := func(name, text string, mode os.FileMode) {
		file := filepath.Join(c.dir, name)
		syscall.ForkLock.RLock() // see newMachine
		defer syscall.ForkLock.RUnlock()
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("spool/root", "HOLDFAST_STORE="+store+"\n"+crontab, 0o600)
	write("empty/.placeholder", "", 0o600)
	write("table", "", 0o600)
	write("opt/report.sh", "#!/bin/sh\necho ran >>"+c.dir+"/ran\n", 0o755)
	write("bin/holdfast", "#!/bin/sh\n"+holdfastProgram(t)+` "$@"; code=$?; echo $code >>`+c.dir+"/ended; exit $code\n", 0o755)
	write("sbin/sendmail", "#!/bin/sh\ncat >>"+c.dir+"/mail\n", 0o755)
	c.cron = exec.Command("unshare", "--mount", "sh", "-c", cronScript, "sh", c.dir, faketime[0])
	log, err := os.Create(filepath.Join(c.dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	c.cron.Stdout, c.cron.Stderr = log, log
	if err := servertest.StartProcess(c.cron); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.cron.Process.Kill()
		_ = c.cron.Wait()
	})
	return c
}

func (c *cronMachine) read(name string) string {
	text, _ := os.ReadFile(filepath.Join(c.dir, name))
	return string(text)
}

// await waits until a number of jobs have ended, and cron has sent what they have printed.
func (c *cronMachine) await(t *testing.T, jobs int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", c.cron.Process.Pid))
		if strings.Count(c.read("ended"), "\n") == jobs && len(children) == 0 {
			return
		}
		if mail := c.read("mail"); time.Now().After(end) || strings.Contains(mail, "not found") {
			t.Fatalf("cron has run %q of %d jobs: %s%s", c.read("ended"), jobs, c.read("log"), mail)
		}
	}
}

var (
	cronTimes    = regexp.MustCompile(`(?m)^(?:[0-9*/,-]+ +){5}`)
	shownSlots   = regexp.MustCompile(`--schedule '[0-9*]+ [0-9*]+ \* \* \*' '?--tz'? \S+`)
	crontabStore = regexp.MustCompile(`(?m)^HOLDFAST_STORE=.*$`)
)

// withSlot replaces the schedule in a command line by one whose slot has begun some time ago.
func withSlot(line string, ago time.Duration) string {
	due := time.Now().UTC().Add(-ago)
	line = strings.ReplaceAll(line, "'--schedule'", "--schedule")
	return shownSlots.ReplaceAllString(line, fmt.Sprintf("--schedule '%d %d * * *' --tz UTC", due.Minute(), due.Hour()))
}

// crontabs are the crontabs that documents and the help of run show.
func crontabs(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, file := range documents(t) {
		for _, b := range documentBlocks(t, file) {
			if b.language == "" && cronTimes.MatchString(b.text) {
				found[fmt.Sprintf("%s:%d", documentName(t, file), b.line)] = b.text
			}
		}
	}
	_, help := newMachine(t).run(t, holdfastProgram(t), "run", "--help")
	help = regexp.MustCompile(`(?m)^  PATH=.*\n(  0 3 .*\n)+`).FindString(help)
	found["run --help"] = strings.ReplaceAll(strings.ReplaceAll(help, "\n  ", "\n"), "./report.sh", "/opt/report.sh")[2:]
	return found
}

// TestCrontabs: Debian's cron, which looks for programs in /usr/bin and /bin alone, runs each shown crontab on one of
// two machines, and sends no mail from either.
func TestCrontabs(t *testing.T) {
	t.Parallel()
	all := crontabs(t)
	for where, text := range all {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			// All lines are due at once, and the store is that of the test.
			text = cronTimes.ReplaceAllString(crontabStore.ReplaceAllString(text, ""), "0 3 * * *  ")
			text = withSlot(text, 2*time.Minute)
			store := newMachine(t).store()
			machines := []*cronMachine{startCron(t, store, text), startCron(t, store, text)}
			ran := ""
			for _, m := range machines {
				m.await(t, len(cronTimes.FindAllString(text, -1)))
				ran += m.read("ran")
				if mail := m.read("mail"); mail != "" {
					t.Errorf("cron has sent a mail: %s", mail)
				}
			}
			if ran != "ran\n" {
				t.Errorf("the job ran %d times", strings.Count(ran, "\n"))
			}
		})
	}
	if len(all) < 5 {
		t.Errorf("found only %d crontabs", len(all))
	}
}

// TestMissedNight: cron sends a mail if a night is left out, although the line has -q.
func TestMissedNight(t *testing.T) {
	t.Parallel()
	line := regexp.MustCompile(`(?m)^PATH=.*\n0 3 .*holdfast once -q .*\n`).FindString(crontabsOf(t, "docs/run-once.md"))
	if line == "" {
		t.Fatal("docs/run-once.md shows no crontab with once -q")
	}
	m := startCron(t, newMachine(t).store(), withSlot(line, time.Hour))
	m.await(t, 1)
	// The slot began with a minute, so that it is up to a minute older, and older still when cron has run the line.
	missed := regexp.MustCompile(`is not run: its slot started 1h\d+m ago`)
	if mail := m.read("mail"); !missed.MatchString(mail) || m.read("ran") != "" {
		t.Errorf("the mail is %q", mail)
	}
}

// crontabsOf are the crontabs of one document.
func crontabsOf(t *testing.T, name string) (text string) {
	for where, crontab := range crontabs(t) {
		if strings.HasPrefix(where, name+":") {
			text += crontab
		}
	}
	return text
}
