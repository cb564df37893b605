// Package dynamodbtest runs a DynamoDB for tests: an emulator in a process of its own, on a free port of the
// loopback interface. Probe checks that an emulator can be trusted. A Proxy in front of it can be cut, counts
// requests, and can change replies.
package dynamodbtest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// LocalVariable is the environment variable that names the directory of DynamoDB Local, Amazon's own emulator. If it is
// set, that is run instead of dynalite.
const LocalVariable = "HOLDFAST_DYNAMODB_LOCAL"

// Server is one emulator.
type Server struct {
	// Endpoint is the URL for clients. It leads through a Proxy, because dynalite crashes when a client gives up a
	// request.
	Endpoint string
	// Direct is the URL of the emulator itself, for a Proxy, and for benchmarks that give up no request.
	Direct string
	proxy  *Proxy
	port   string
	dir    string // its data
	cmd    *exec.Cmd
	out    bytes.Buffer
	exited chan struct{}
}

// startTime bounds how long an emulator may take to answer.
const startTime = 60 * time.Second

// Start runs an emulator. Its data survive Restart, and are removed by Stop.
func Start(ctx context.Context) (*Server, error) {
	dir, err := os.MkdirTemp("", "holdfast-dynamodb-")
	if err != nil {
		return nil, err
	}
	var errs []error
	for range 10 { // another process may take the port first
		port, err := servertest.FreePort()
		if err != nil {
			return nil, err
		}
		s := &Server{Direct: "http://127.0.0.1:" + port, port: port, dir: dir}
		err = s.startProcess(ctx)
		if err == nil {
			s.proxy, err = NewProxy(s.Direct)
		}
		if err == nil {
			s.Endpoint = s.proxy.Endpoint
			return s, nil
		}
		errs = append(errs, err)
	}
	_ = os.RemoveAll(dir)
	return nil, errors.Join(errs...)
}

// makeCommand is the command that runs the emulator.
func (s *Server) makeCommand() (*exec.Cmd, error) {
	if local := os.Getenv(LocalVariable); local != "" {
		return exec.Command("java", "-Xmx384m", "-XX:+UseSerialGC", "-Djava.library.path="+local,
			"-DDYNAMODB_LOCAL_TELEMETRY=0",
			"-cp", filepath.Join(local, "*"), "com.amazonaws.services.dynamodbv2.local.main.ServerRunner",
			"-port", s.port, "-dbPath", s.dir, "-disableTelemetry"), nil
	}
	cli, err := servertest.FindInstalled("dynalite/node_modules/dynalite/cli.js")
	if err != nil {
		return nil, err
	}
	return exec.Command("node", cli, "--host", "127.0.0.1", "--port", s.port, "--path", s.dir,
		"--createTableMs", "0", "--deleteTableMs", "0", "--updateTableMs", "0"), nil
}

// startProcess starts the emulator and waits until it answers.
func (s *Server) startProcess(ctx context.Context) error {
	var err error
	if s.cmd, err = s.makeCommand(); err != nil {
		return err
	}
	s.out.Reset()
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	if err := servertest.StartProcess(s.cmd); err != nil {
		return err
	}
	s.exited = make(chan struct{})
	go func(cmd *exec.Cmd, gone chan struct{}) {
		_ = cmd.Wait()
		close(gone)
	}(s.cmd, s.exited)
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	client := Client(s.Direct)
	for {
		_, err := client.ListTables(ctx, &sdk.ListTablesInput{})
		if err == nil {
			return nil
		}
		select {
		case <-s.exited:
			return fmt.Errorf("the emulator has ended: %s", s.out.String())
		case <-ctx.Done():
			s.killProcess()
			return fmt.Errorf("the emulator does not answer: %w", cmp.Or(err, ctx.Err()))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// killProcess ends the emulator at once.
func (s *Server) killProcess() {
	_ = s.cmd.Process.Kill()
	<-s.exited
}

// ProcessorTime is the processor time that the emulator has used since it was started; 0 where there is no /proc.
func (s *Server) ProcessorTime() (total time.Duration) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", s.cmd.Process.Pid))
	for _, path := range threads {
		text, _ := os.ReadFile(path)
		var ns int64
		_, _ = fmt.Sscan(string(text), &ns)
		total += time.Duration(ns)
	}
	return total
}

// Restart stops the emulator by a signal, and starts it again with the same data.
func (s *Server) Restart(ctx context.Context) error {
	_ = s.cmd.Process.Signal(os.Interrupt)
	select {
	case <-s.exited:
	case <-time.After(5 * time.Second):
		s.killProcess()
	}
	return s.startProcess(ctx)
}

// Stop ends the emulator and removes its data. If the emulator had ended before, Stop returns its output.
func (s *Server) Stop() (said string) {
	s.proxy.Close()
	select {
	case <-s.exited:
		said = cmp.Or(s.out.String(), "nothing")
	default:
		s.killProcess()
	}
	_ = os.RemoveAll(s.dir)
	return said
}

// Client returns a client of the SDK that sends each request once.
func Client(endpoint string) *sdk.Client {
	return sdk.New(sdk.Options{
		BaseEndpoint: &endpoint, Region: "eu-central-1", Retryer: aws.NopRetryer{},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "hunter2secret"}, nil
		}),
		HTTPClient: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256,
			IdleConnTimeout: 2 * time.Second}},
	})
}
