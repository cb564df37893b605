// Package azuretest runs Azure Blob Storage for tests: Azurite, Microsoft's emulator, in a process of its own on a free
// port of the loopback interface. A Proxy in front of it can be cut, counts requests, and can fail in the ways in which
// the service fails. Probe checks that the emulator can be trusted.
//
// Azurite 3.37 does what the service does with the conditions of reads and writes, with leases and with their error
// codes: Probe asks it for that. What it does not do like the service:
//
//   - A DELETE with If-None-Match: * removes the blob. The store sends no such request.
//   - A DELETE with If-Match of a blob that does not exist is 412, and not 404.
//   - An error has neither the version of the API nor the number that the client gave to its request.
//   - It accepts a request that is dated an hour off. The Proxy refuses that, as the service does.
//   - It accepts names that are too long or end in a dot, ids of leases that are not GUIDs, and metadata of more than 8 KiB.
//   - ETags are random, and not times.
//   - There is no versioning, soft delete, immutability or hierarchical namespace: the Proxy answers in their place.
//   - There are no tokens over http, and no network rules.
package azuretest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// The account of the emulator and its key, as its documentation has them.
const (
	Account = "devstoreaccount1"
	Key     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// Server is one emulator.
type Server struct {
	Direct string // the address of the account, at the emulator itself

	port   string
	cmd    *exec.Cmd
	out    bytes.Buffer
	exited chan struct{}
}

// startTime bounds how long an emulator may take to answer.
const startTime = 60 * time.Second

// Start runs an emulator, which keeps everything in memory, and makes these containers.
func Start(ctx context.Context, containers ...string) (*Server, error) {
	var errs []error
	for range 10 { // another process may take the port first
		port, err := servertest.FreePort()
		if err != nil {
			return nil, err
		}
		s := &Server{Direct: "http://127.0.0.1:" + port + "/" + Account, port: port}
		if err = s.startProcess(ctx); err == nil {
			for _, name := range containers {
				err = errors.Join(err, s.CreateContainer(ctx, name))
			}
			if err != nil {
				s.Stop()
				return nil, err
			}
			return s, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// startProcess starts the emulator and waits until it answers.
func (s *Server) startProcess(ctx context.Context) error {
	main, err := servertest.FindInstalled("azurite/node_modules/azurite/dist/src/blob/main.js")
	if err != nil {
		return err
	}
	// The check of versions refuses what Microsoft's own library sends.
	s.cmd = exec.Command("node", main, "--blobHost", "127.0.0.1", "--blobPort", s.port, "--inMemoryPersistence",
		"--skipApiVersionCheck", "--disableTelemetry", "--silent")
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	if err := servertest.StartProcess(s.cmd); err != nil {
		return err
	}
	s.exited = make(chan struct{})
	go func() {
		_ = s.cmd.Wait()
		close(s.exited)
	}()
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		reply, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(s.Direct)
		if err == nil {
			return reply.Body.Close()
		}
		select {
		case <-s.exited:
			return fmt.Errorf("the emulator has ended: %s", s.out.String())
		case <-ctx.Done():
			s.Stop()
			return fmt.Errorf("the emulator does not answer: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop ends the emulator. If it had ended before, Stop returns its output.
func (s *Server) Stop() (said string) {
	select {
	case <-s.exited:
		return cmp.Or(s.out.String(), "nothing")
	default:
	}
	_ = s.cmd.Process.Kill()
	<-s.exited
	return ""
}

// CreateContainer makes a container.
func (s *Server) CreateContainer(ctx context.Context, name string) error {
	_, err := Client(s.Direct).CreateContainer(ctx, name, nil)
	if bloberror.HasCode(err, bloberror.ContainerAlreadyExists) {
		return nil
	}
	return err
}

// Client returns a client of Microsoft's library that sends each request once, for what other programs do.
func Client(account string) *azblob.Client {
	return ClientVia(account, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 2 * time.Second}})
}

// ClientVia is Client over connections of the caller's.
func ClientVia(account string, transport policy.Transporter) *azblob.Client {
	key, err := azblob.NewSharedKeyCredential(Account, Key)
	if err != nil {
		panic(err) // it is a constant
	}
	options := &azblob.ClientOptions{}
	options.Retry = policy.RetryOptions{MaxRetries: -1}
	options.Transport = transport
	client, err := azblob.NewClientWithSharedKeyCredential(account, key, options)
	if err != nil {
		panic(err) // the address is one of ours
	}
	return client
}
