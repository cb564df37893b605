package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/internal/benchtest/requests"
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

// store is a kind of store that is measured.
type store struct {
	name  string
	about string // what a reader must know of the servers to understand the figures
	// requests says what counts as a request, and who counts them; empty: they are not counted.
	requests string
	// maxRenewals is how many renewals per second the store is asked for at most: the TTL of held leases is chosen so.
	// 0: it renews all leases with a few requests, and the TTL is 30 s.
	maxRenewals int
	oneProcess  bool // its locks are not seen by other processes
	alwaysFair  bool // its plain mutexes are fair ones
	isForeign   bool // it was there before, and must be left as it was
	start       func(ctx context.Context) (*server, error)
}

// server is a running store.
type server struct {
	url   string
	count func(ctx context.Context, ws workers) (int64, error) // requests so far; nil: they are not counted
	stop  func()
}

// requestCount is a number of requests, if they are counted.
type requestCount struct {
	n     int64
	known bool
}

// per writes the number divided by another one.
func (r requestCount) per(n float64) string {
	if !r.known {
		return unknown
	}
	return perUnit(float64(r.n), n)
}

// countDuring counts the requests while do runs.
func (s *server) countDuring(ctx context.Context, ws workers, do func() error) (r requestCount, err error) {
	if s.count == nil {
		return r, do()
	}
	before, err := s.count(ctx, ws)
	if err != nil {
		return r, err
	}
	if err := do(); err != nil {
		return r, err
	}
	now, err := s.count(ctx, ws)
	return requestCount{now - before, true}, err
}

// closeClients closes the clients of a store that others use too. Servers of our own are ended instead.
func (s *store) closeClients(ws workers) error {
	if !s.isForeign {
		return nil
	}
	_, err := callAll[struct{}](ws, "Close", *limit)
	return err
}

// stores are the kinds of stores, with servers of their own.
var stores = []store{
	{name: "memory", about: "the bytes contain the records of the store itself", oneProcess: true, start: startMemory},
	{name: "file", about: "a directory for temporary files", requests: "a read or write system call of the clients",
		maxRenewals: 1000, start: startFile},
	{name: "redis", about: "one server without a disk", requests: "a script, by INFO commandstats", start: startRedis},
	{name: "etcd", about: "three members that do not flush to disk",
		requests: "a message of a client, by the members' metrics", alwaysFair: true, start: startEtcd},
	{name: "zookeeper", about: "three members that do not flush to disk", requests: "a packet of a client, by mntr",
		alwaysFair: true, start: startZooKeeper},
	{name: "consul", about: "one server", requests: "a request to the HTTP API that has ended, by the server's metrics",
		alwaysFair: true, start: startConsul},
	{name: "postgres", about: "one server that does not flush to disk", requests: "a statement, by pg_stat_statements",
		maxRenewals: 1000, start: startPostgres},
	{name: "mysql", about: "one MariaDB that flushes to disk once per second", requests: "a statement, by Questions",
		maxRenewals: 1000, start: startMySQL},
	{name: "nats", about: "one server that flushes to disk every two minutes",
		requests: "a message of a client, by varz", maxRenewals: 1000, start: startNATS},
	{name: "dynamodb", about: "an emulator, dynalite: its times say nothing about the service",
		requests: "a request, by a proxy", maxRenewals: 500, start: startDynamoDB},
	{name: "gcs", about: "an emulator in memory: its times say nothing about the service",
		requests: "a request, by the emulator", maxRenewals: 500, start: startGCS},
	{name: "azure", about: "an emulator, Azurite: its times say nothing about the service",
		requests: "a request, by a proxy", maxRenewals: 500, start: startAzure},
	{name: "s3", about: "MinIO on one disk: its times say little about another service",
		requests: "a request, by MinIO's metrics", maxRenewals: 500, start: startS3},
	{name: "kubernetes", about: "an API server for leases over one etcd that does not flush to disk",
		requests: "a request that has ended, by the API server's metrics", maxRenewals: 500, start: startKubernetes},
}

func startMemory(context.Context) (*server, error) {
	return &server{url: "memory://scale", stop: func() {}}, nil
}

func startFile(context.Context) (*server, error) {
	dir, err := os.MkdirTemp("", "holdfast-scale-")
	if err != nil {
		return nil, err
	}
	count := func(_ context.Context, ws workers) (sum int64, err error) {
		all, err := callAll[int64](ws, "CountCalls", struct{}{})
		for _, n := range all {
			sum += n
		}
		return sum, err
	}
	return &server{"file://" + dir, count, func() { _ = os.RemoveAll(dir) }}, nil
}

func startRedis(context.Context) (*server, error) {
	s, err := redistest.Start()
	if err != nil {
		return nil, err
	}
	count := func(context.Context, workers) (int64, error) { return s.CountScripts() }
	return &server{"redis://" + s.Addr, count, s.Stop}, nil
}

func startEtcd(ctx context.Context) (*server, error) {
	c, err := etcdtest.Start(ctx, etcdtest.Options{Direct: true})
	if err != nil {
		return nil, err
	}
	count := func(ctx context.Context, _ workers) (sum int64, err error) {
		for _, at := range c.Endpoints() {
			n, err := requests.SumMetric(ctx, http.DefaultClient, "http://"+at+"/metrics", "grpc_server_msg_received_total")
			if err != nil {
				return 0, err
			}
			sum += n
		}
		return sum, nil
	}
	return &server{"etcd://" + strings.Join(c.Endpoints(), ","), count, c.Close}, nil
}

func startZooKeeper(ctx context.Context) (*server, error) {
	e, err := zktest.Start(ctx, zktest.Options{Direct: true, Args: []string{"-Xmx1g"}})
	if err != nil {
		return nil, err
	}
	count := func(ctx context.Context, _ workers) (sum int64, err error) {
		for _, at := range e.Endpoints() {
			n, err := zktest.CountPackets(ctx, at)
			if err != nil {
				return 0, err
			}
			sum += n
		}
		return sum, nil
	}
	return &server{"zookeeper://" + strings.Join(e.Endpoints(), ","), count, e.Close}, nil
}

func startConsul(ctx context.Context) (*server, error) {
	c, err := consultest.Start(ctx, consultest.Options{HCL: []string{
		`telemetry { prometheus_retention_time = "1h" disable_hostname = true }`,
		`limits { http_max_conns_per_client = 15000 }`}})
	if err != nil {
		return nil, err
	}
	metrics := "http://" + c.Endpoints()[0] + "/v1/agent/metrics?format=prometheus"
	return &server{c.URL(), metricCounter(http.DefaultClient, metrics, "consul_api_http_count"), c.Close}, nil
}

// startPostgres allows so many connections that each of 1,000 clients can have what it makes by itself.
func startPostgres(context.Context) (*server, error) {
	s, err := pgtest.Start("max_connections=3000", "shared_preload_libraries=pg_stat_statements")
	if err != nil {
		return nil, err
	}
	if err := s.Exec("create extension pg_stat_statements"); err != nil {
		s.Stop()
		return nil, err
	}
	count := func(context.Context, workers) (n int64, err error) {
		text, err := s.QueryValue("select sum(calls)::bigint from pg_stat_statements")
		if err == nil {
			_, err = fmt.Sscan(text, &n)
		}
		return n, err
	}
	return &server{s.URL("test") + "?sslmode=disable&create=true", count, s.Stop}, nil
}

func startMySQL(context.Context) (*server, error) {
	s, err := mysqltest.Start("max-connections=10000")
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("mysql", s.DSN())
	if err != nil {
		s.Close()
		return nil, err
	}
	count := func(ctx context.Context, _ workers) (n int64, err error) {
		var name string
		err = db.QueryRowContext(ctx, "show global status like 'Questions'").Scan(&name, &n)
		return n, err
	}
	return &server{s.URL() + "?create=true", count, func() { db.Close(); s.Close() }}, nil
}

func startNATS(ctx context.Context) (*server, error) {
	port, err := servertest.FreePort()
	if err != nil {
		return nil, err
	}
	c, err := natstest.Start(ctx, natstest.Options{Config: "http: 127.0.0.1:" + port})
	if err != nil {
		return nil, err
	}
	count := counter(func(ctx context.Context) (int64, error) { return requests.NATS(ctx, port) })
	return &server{c.URL("locks") + "?create=true", count, c.Close}, nil
}

func startDynamoDB(ctx context.Context) (*server, error) {
	s, err := dynamodbtest.Start(ctx)
	if err != nil {
		return nil, err
	}
	proxy, err := dynamodbtest.NewProxy(s.Direct)
	if err != nil {
		s.Stop()
		return nil, err
	}
	setKeys("test", "test")
	var sum int64
	count := func(context.Context, workers) (int64, error) {
		for _, n := range proxy.Counts() {
			sum += int64(n)
		}
		return sum, nil
	}
	at := "dynamodb://locks?region=eu-central-1&create=true&endpoint=" + url.QueryEscape(proxy.Endpoint)
	return &server{at, count, func() { proxy.Close(); s.Stop() }}, nil
}

func startGCS(context.Context) (*server, error) {
	s := gcstest.Start("locks")
	return &server{"gcs://locks?anonymous=true&endpoint=" + url.QueryEscape(s.URL),
		counter(requests.Added(s.Counts)), s.Stop}, nil
}

func startAzure(ctx context.Context) (*server, error) {
	s, err := azuretest.Start(ctx, "locks")
	if err != nil {
		return nil, err
	}
	proxy, err := s.NewProxy()
	if err != nil {
		s.Stop()
		return nil, err
	}
	_ = os.Setenv("AZURE_STORAGE_KEY", azuretest.Key)
	at := "azure://" + azuretest.Account + "/locks?endpoint=" + url.QueryEscape(proxy.URL)
	return &server{at, counter(requests.Added(proxy.Counts)), func() { proxy.Close(); s.Stop() }}, nil
}

func startS3(context.Context) (*server, error) {
	if err := os.Setenv("MINIO_PROMETHEUS_AUTH_TYPE", "public"); err != nil {
		return nil, err
	}
	s, err := s3test.StartMinIO("locks")
	if err != nil {
		return nil, err
	}
	setKeys(s3test.AccessKey, s3test.SecretKey)
	metrics := s.URL() + "/minio/metrics/v3/api/requests"
	return &server{"s3://locks?endpoint=" + url.QueryEscape(s.URL()),
		metricCounter(http.DefaultClient, metrics, "minio_api_requests_total"), s.Close}, nil
}

func startKubernetes(context.Context) (*server, error) {
	c, err := kubernetestest.Start()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "holdfast-scale-")
	if err != nil {
		c.Close()
		return nil, err
	}
	stop := func() { c.Close(); _ = os.RemoveAll(dir) }
	config := filepath.Join(dir, "kubeconfig")
	if err := c.WriteKubeconfig(config, kubernetestest.AllowAll); err != nil {
		stop()
		return nil, err
	}
	client, _ := c.Client(kubernetestest.AllowAll, nil, nil)
	return &server{"kubernetes://?kubeconfig=" + config,
		metricCounter(client, c.Address()+"/metrics", "apiserver_request_total"), stop}, nil
}

// setKeys sets the credentials of this process and of its workers.
func setKeys(id, secret string) {
	_ = os.Setenv("AWS_ACCESS_KEY_ID", id)
	_ = os.Setenv("AWS_SECRET_ACCESS_KEY", secret)
}
