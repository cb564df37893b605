package cli

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/store/azure/azuretest"
	"github.com/holdfast-go/holdfast/store/consul/consultest"
	"github.com/holdfast-go/holdfast/store/dynamodb/dynamodbtest"
	"github.com/holdfast-go/holdfast/store/etcd/etcdtest"
	"github.com/holdfast-go/holdfast/store/gcs/gcstest"
	"github.com/holdfast-go/holdfast/store/kubernetes/kubernetestest"
	"github.com/holdfast-go/holdfast/store/mysql/mysqltest"
	"github.com/holdfast-go/holdfast/store/nats/natstest"
	"github.com/holdfast-go/holdfast/store/postgres/pgtest"
	"github.com/holdfast-go/holdfast/store/redis/redistest"
	"github.com/holdfast-go/holdfast/store/s3/s3test"
	"github.com/holdfast-go/holdfast/store/zookeeper/zktest"
)

// tortureStore is a store with servers of its own.
type tortureStore struct {
	url         string
	faults      []serverFault
	every       time.Duration // between two of them; 0: 2s
	loses       bool          // it may forget a grant, and then breaks promises
	environment []string
}

// serverFault is a kind of fault of the servers.
type serverFault struct {
	name       string
	begin, end func() error // end may be nil
}

// killed is the fault that a server dies, and is started again.
func killed(kill func(), start func() error) serverFault {
	return serverFault{"kill", func() error { kill(); return nil }, start}
}

// stopped is the fault that a server hangs.
func stopped(signal func(syscall.Signal)) serverFault {
	send := func(s syscall.Signal) func() error { return func() error { signal(s); return nil } }
	return serverFault{"stop", send(syscall.SIGSTOP), send(syscall.SIGCONT)}
}

// serveFaults makes the faults when the hooks of torture ask for them, which run in the directory of the test. It
// returns the flags for the hooks, and a function that tells how many there were.
func (w *workspace) serveFaults(s tortureStore) (flags []string, counts func() string) {
	w.Helper()
	pipe := func(name string) *os.File {
		if err := unix.Mkfifo(w.filePath(name), 0o600); err != nil {
			w.Fatal(err)
		}
		f, err := os.OpenFile(w.filePath(name), os.O_RDWR, 0)
		if err != nil {
			w.Fatal(err)
		}
		return f
	}
	orders, answers := pipe("orders"), pipe("answers")
	w.Cleanup(func() { orders.Close() })
	made := make([]atomic.Int32, len(s.faults))
	go func() {
		defer answers.Close()
		chosen := 0
		for lines := bufio.NewScanner(orders); lines.Scan(); {
			act := s.faults[chosen].end
			if lines.Text() == "fault" {
				chosen = rand.IntN(len(s.faults))
				act = s.faults[chosen].begin
				made[chosen].Add(1)
			}
			var err error
			if act != nil {
				err = act()
			}
			fmt.Fprintln(answers, strings.ReplaceAll(fmt.Sprint(err), "\n", " "))
		}
	}()
	hook := func(order string) string {
		return "echo " + order + ` >orders && read answer <answers && echo "$answer" && test "$answer" = "<nil>"`
	}
	every := max(s.every, 2*time.Second)
	return []string{"--server-fault", hook("fault"), "--server-heal", hook("heal"), "--server-every", every.String(),
			"--server-for", "500ms", "--hook-timeout", "2m"}, func() string {
			var all []string
			for i, f := range s.faults {
				all = append(all, fmt.Sprintf("%s %d", f.name, made[i].Load()))
			}
			return strings.Join(all, ", ")
		}
}

// startTortureStore starts the servers of a kind of store.
func (w *workspace) startTortureStore(kind string) (s tortureStore) {
	w.Helper()
	start := map[string]func(*tortureStore) error{
		"file":             func(s *tortureStore) error { s.url = w.store; return nil },
		"redis":            w.startTortureRedis,
		"sentinel":         w.startTortureSentinel,
		"redlock":          w.startTortureRedlock,
		"etcd":             w.startTortureEtcd,
		"consul":           w.startTortureConsul,
		"kubernetes":       w.startTortureKubernetes,
		"zookeeper":        func(s *tortureStore) error { return w.startTortureZooKeeper(s, false) },
		"zookeeper-kills":  func(s *tortureStore) error { return w.startTortureZooKeeper(s, true) },
		"postgres":         w.startTorturePostgres,
		"postgres-standby": w.startTortureStandby,
		"mysql":            w.startTortureMySQL,
		"nats":             w.startTortureNATS,
		"dynamodb":         w.startTortureDynamoDB,
		"gcs":              w.startTortureGCS,
		"azure":            w.startTortureAzure,
		"s3":               w.startTortureS3,
	}[kind]
	if start == nil {
		w.Fatalf("unknown store %q", kind)
	}
	if err := start(&s); err != nil {
		w.Fatal(err)
	}
	return s
}

func (w *workspace) startTortureRedis(s *tortureStore) error {
	server := startRedis(w.T)
	s.url = "redis://" + server.Addr
	s.faults = []serverFault{stopped(server.Signal), killed(server.Kill, server.Restart)}
	return nil
}

// startTortureSentinel: the replicas follow without being waited for, as usual, so a failover may forget grants.
func (w *workspace) startTortureSentinel(s *tortureStore) error {
	group, err := redistest.Replicated(w.Context())
	if err != nil {
		return err
	}
	w.Cleanup(group.Stop)
	if err := group.DetectFailuresFast(); err != nil {
		return err
	}
	at := group.SentinelAddrs()
	s.url = "redis+sentinel://" + at[0] + "/" + redistest.MasterName + "?addrs=" + at[1] + "," + at[2]
	s.loses, s.every = true, 20*time.Second // the Sentinels tell a server that is back whom to follow after 8 s
	primary := func() *redistest.Server {
		info, _ := group.Sentinels[0].Do("INFO", "sentinel")
		for _, server := range group.Servers {
			if strings.Contains(info, "address="+server.Addr+",") {
				return server
			}
		}
		return nil
	}
	var dead *redistest.Server
	s.faults = []serverFault{{"failover",
		func() error {
			if err := redistest.Until(w.Context(), func() bool { dead = primary(); return dead != nil }); err != nil {
				return err
			}
			dead.Kill()
			return nil
		},
		func() error {
			// If the Sentinels do not agree within a minute, the primary comes back, and has forgotten everything.
			_ = redistest.Until(w.Context(), func() bool { p := primary(); return p != nil && p != dead })
			return dead.Restart()
		}}}
	return nil
}

// startTortureRedlock: a server that was killed has lost its data. If it is started at once, two majorities may hold
// a lock.
func (w *workspace) startTortureRedlock(s *tortureStore) error {
	group, err := redistest.Independent(5)
	if err != nil {
		return err
	}
	w.Cleanup(group.Stop)
	s.url, s.loses = "redlock://"+strings.Join(group.Addrs(), ","), true
	var one *redistest.Server
	choose := func() { one = group.Servers[rand.IntN(len(group.Servers))] }
	s.faults = []serverFault{
		killed(func() { choose(); one.Kill() }, func() error { return one.Restart() }),
		stopped(func(signal syscall.Signal) {
			if signal == syscall.SIGSTOP {
				choose()
			}
			one.Signal(signal)
		}),
	}
	return nil
}

// clusterFaults are those of one member of a cluster: any, or the leader.
func clusterFaults(ctx context.Context, members []*servertest.Server, leader func(context.Context) (*servertest.Server, error)) []serverFault {
	var one *servertest.Server
	any := func() error { one = members[rand.IntN(len(members))]; return nil }
	first := func() (err error) { one, err = leader(ctx); return err }
	stop := func() { one.Stop() }
	kill := func() { one.Kill() }
	after := func(choose func() error, then func()) func() error {
		return func() error {
			err := choose()
			if err == nil {
				then()
			}
			return err
		}
	}
	proceed := func() error { one.Continue(); return nil }
	again := func() error { return one.Start() }
	return []serverFault{
		{"stop", after(any, stop), proceed}, {"stop the leader", after(first, stop), proceed},
		{"kill", after(any, kill), again}, {"kill the leader", after(first, kill), again},
	}
}

func (w *workspace) startTortureEtcd(s *tortureStore) error {
	c, err := etcdtest.Start(w.Context(), etcdtest.Options{Direct: true})
	if err != nil {
		return err
	}
	w.Cleanup(c.Close)
	s.url = "etcd://" + strings.Join(c.Endpoints(), ",")
	s.faults = clusterFaults(w.Context(), c.Servers(), c.Leader)
	s.every = 4 * time.Second // without a leader nobody gets a lock
	return nil
}

func (w *workspace) startTortureConsul(s *tortureStore) error {
	c, err := consultest.Start(w.Context(), consultest.Options{Members: 3})
	if err != nil {
		return err
	}
	w.Cleanup(c.Close)
	s.url = c.URL()
	s.faults = clusterFaults(w.Context(), c.Servers(), c.Leader)
	s.every = 4 * time.Second // without a leader nobody gets a lock
	return nil
}

// startTortureZooKeeper: docs/torture-results.md says why kills are another kind of store.
func (w *workspace) startTortureZooKeeper(s *tortureStore, kills bool) error {
	e, err := zktest.Start(w.Context(), zktest.Options{Direct: true})
	if err != nil {
		return err
	}
	w.Cleanup(e.Close)
	s.url = "zookeeper://" + strings.Join(e.Endpoints(), ",")
	s.faults = clusterFaults(w.Context(), e.Servers(), e.Leader)
	s.every = 4 * time.Second
	if !kills {
		s.faults = s.faults[:2]
	}
	return nil
}

func (w *workspace) startTorturePostgres(s *tortureStore) error {
	server, err := pgtest.Start("fsync=on")
	if err != nil {
		return err
	}
	w.Cleanup(server.Stop)
	s.url = server.URL("test") + "?sslmode=disable&create=true"
	s.faults = []serverFault{killed(server.Kill, server.StartAgain)}
	return nil
}

// startTortureStandby: commits wait for a standby, which takes over when the primary has died. Then it gets a new
// standby.
func (w *workspace) startTortureStandby(s *tortureStore) error {
	primary, err := pgtest.Start("fsync=on")
	if err != nil {
		return err
	}
	standby, err := primary.Standby()
	if err != nil {
		primary.Stop()
		return err
	}
	w.Cleanup(func() { primary.Stop(); standby.Stop() })
	var addresses []string
	links := map[*pgtest.Server]*servertest.Link{}
	for _, server := range []*pgtest.Server{primary, standby} {
		link, err := servertest.NewLink(server.Addr)
		if err != nil {
			return err
		}
		w.Cleanup(link.Close)
		links[server], addresses = link, append(addresses, link.Addr)
	}
	for _, text := range []string{`alter system set synchronous_standby_names = '*'`, `select pg_reload_conf()`} {
		if err := primary.Exec(text); err != nil {
			return err
		}
	}
	s.url = "postgres://test@" + strings.Join(addresses, ",") + "/postgres?sslmode=disable&create=true&timeout=2s"
	s.every = 8 * time.Second
	s.faults = []serverFault{
		{"kill the standby", func() error { standby.Kill(); return nil }, func() error { return standby.StartAgain() }},
		{"failover",
			func() error { primary.Kill(); return standby.Exec(`select pg_promote()`) },
			func() error {
				next, err := standby.Standby()
				if err != nil {
					return err
				}
				links[next] = links[primary]
				delete(links, primary)
				links[next].RedirectNew(next.Addr)
				primary.Stop()
				primary, standby = standby, next
				return nil
			}},
	}
	return nil
}

func (w *workspace) startTortureMySQL(s *tortureStore) error {
	server, err := mysqltest.Start("innodb-flush-log-at-trx-commit=1")
	if err != nil {
		return err
	}
	w.Cleanup(server.Close)
	s.url = server.URL() + "?create=true"
	s.faults = []serverFault{
		{"stop", func() error { server.Stop(); return nil }, func() error { server.Continue(); return nil }},
		killed(server.Kill, server.StartAgain),
	}
	return nil
}

// startTortureKubernetes: the API server is stopped and killed, and its etcd killed.
func (w *workspace) startTortureKubernetes(s *tortureStore) error {
	c, err := kubernetestest.Start()
	if err != nil {
		return err
	}
	w.Cleanup(c.Close)
	config := w.filePath("kubeconfig")
	if err := c.WriteKubeconfig(config, kubernetestest.AllowAll); err != nil {
		return err
	}
	s.url = "kubernetes://?kubeconfig=" + config
	s.faults = []serverFault{
		{"stop", func() error { c.API.Stop(); return nil }, func() error { c.API.Continue(); return nil }},
		killed(c.API.Kill, c.StartAPI),
		{"kill etcd", func() error { c.Etcd.Kill(); return nil }, c.Etcd.Start},
	}
	return nil
}

// startTortureNATS: the leader of the bucket is stopped and killed in turn.
func (w *workspace) startTortureNATS(s *tortureStore) error {
	servers, err := natstest.Start(w.Context(), natstest.Options{Members: 3})
	if err != nil {
		return err
	}
	w.Cleanup(servers.Close)
	s.url = servers.URL("locks") + "?create=true&replicas=3"
	s.every = 10 * time.Second // an election takes up to ten seconds
	var hurt *servertest.Server
	hurtLeader := func(how func(*servertest.Server)) func() error {
		return func() (err error) {
			if hurt, err = servers.Leader(w.Context(), "locks"); err == nil {
				how(hurt)
			}
			return err
		}
	}
	s.faults = []serverFault{
		{"stop", hurtLeader((*servertest.Server).Stop), func() error { hurt.Continue(); return nil }},
		{"kill", hurtLeader((*servertest.Server).Kill), func() error { return servers.Restart(w.Context(), hurt) }},
	}
	return nil
}

func (w *workspace) startTortureDynamoDB(s *tortureStore) error {
	server, err := dynamodbtest.Start(w.Context())
	if err != nil {
		return err
	}
	w.Cleanup(func() { server.Stop() })
	s.url = "dynamodb://locks?region=eu-central-1&endpoint=" + url.QueryEscape(server.Endpoint) + "&create=true"
	s.environment = []string{"AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test"}
	s.faults = []serverFault{{"restart", func() error { return server.Restart(w.Context()) }, nil}}
	return nil
}

// startTortureS3: MinIO is stopped and killed.
func (w *workspace) startTortureS3(s *tortureStore) error {
	server, err := s3test.StartMinIO("locks")
	if err != nil {
		return err
	}
	w.Cleanup(server.Close)
	s.url = "s3://locks?endpoint=" + url.QueryEscape(server.URL())
	s.environment = []string{"AWS_ACCESS_KEY_ID=" + s3test.AccessKey, "AWS_SECRET_ACCESS_KEY=" + s3test.SecretKey}
	s.faults = []serverFault{
		{"stop", func() error { server.Stop(); return nil }, func() error { server.Continue(); return nil }},
		{"kill", func() error { server.Kill(); return nil }, server.StartAgain},
	}
	return nil
}

// startTortureGCS: the service that is in trouble carries out every other request, and does not say so.
func (w *workspace) startTortureGCS(s *tortureStore) error {
	server := gcstest.Start("locks")
	w.Cleanup(server.Stop)
	var refuses, hidden atomic.Bool
	server.Decide = func(gcstest.Request) (f gcstest.Fate) {
		if refuses.Load() {
			f.RefuseStatus = 503
		} else if hidden.Load() && rand.IntN(2) == 0 {
			f.ReplaceStatus = 503
		}
		return f
	}
	set := func(b *atomic.Bool, on bool) func() error { return func() error { b.Store(on); return nil } }
	// An emulator allows more than one write per second and object.
	s.url = "gcs://locks?anonymous=true&write-interval=100ms&endpoint=" + url.QueryEscape(server.URL)
	s.faults = []serverFault{
		{"refuse", set(&refuses, true), set(&refuses, false)}, {"hide replies", set(&hidden, true), set(&hidden, false)},
	}
	return nil
}

// startTortureAzure: as startTortureGCS, and the link is cut.
func (w *workspace) startTortureAzure(s *tortureStore) error {
	server, err := azuretest.Start(w.Context(), "locks")
	if err != nil {
		return err
	}
	w.Cleanup(func() { server.Stop() })
	proxy, err := server.NewProxy()
	if err != nil {
		return err
	}
	w.Cleanup(proxy.Close)
	var refuses, hidden atomic.Bool
	proxy.Decide = func(azuretest.Request) (f azuretest.Fate) {
		if refuses.Load() {
			f.Status, f.Code = 503, "ServerBusy"
		} else if hidden.Load() && rand.IntN(2) == 0 {
			f.Status, f.Code, f.After = 500, "OperationTimedOut", true
		}
		return f
	}
	set := func(b *atomic.Bool, on bool) func() error { return func() error { b.Store(on); return nil } }
	s.url = "azure://" + azuretest.Account + "/locks?endpoint=" + url.QueryEscape(proxy.URL)
	s.environment = []string{"AZURE_STORAGE_KEY=" + azuretest.Key}
	s.faults = []serverFault{
		{"refuse", set(&refuses, true), set(&refuses, false)}, {"hide replies", set(&hidden, true), set(&hidden, false)},
		{"cut", func() error { proxy.Cut(); return nil }, func() error { proxy.Heal(); return nil }},
	}
	return nil
}
