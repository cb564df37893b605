// Webhook is an HTTP service that keeps the stock of a shop, and rejects callers whose lock was lost. The callers are
// in another language: client.py, which needs nothing but Python's standard library. The locks are in a directory of
// files.
//
// Run it with: go run ./examples/webhook
package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
	"github.com/holdfast-go/holdfast/examples/internal/story"
	"github.com/holdfast-go/holdfast/fence"
	_ "github.com/holdfast-go/holdfast/store/file"
)

//go:embed client.py
var clientProgram string

func main() { story.Main(tellStory, nil) }

// stock is what the service keeps. It is in memory, and so the gate may be, too.
type stock struct {
	mu    sync.Mutex
	pairs map[string]int
}

// newService returns the service: PUT /stock/ITEM sets how many pairs there are.
func newService() (http.Handler, *stock) {
	s := &stock{pairs: map[string]int{}}
	guard := &fence.Guard{
		Gate:     &fence.MemoryGate{},
		Resource: func(r *http.Request) string { return "stock/" + r.PathValue("item") },
	}
	mux := http.NewServeMux()
	mux.Handle("PUT /stock/{item}", guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 100))
		n, numberErr := strconv.Atoi(strings.TrimSpace(string(body)))
		if err != nil || numberErr != nil {
			http.Error(w, "the body is not a number", http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.pairs[r.PathValue("item")] = n
	})))
	return mux, s
}

func tellStory(out io.Writer) error {
	s := story.New(out, "Webhook: a service that rejects stale callers, and callers in Python")
	defer s.End()
	ctx := context.Background()
	service, stock := newService()
	listener, err := servertest.Listen()
	if err != nil {
		return err
	}
	server := &http.Server{Handler: service}
	go func() { _ = server.Serve(listener) }()
	s.AtEnd(func() { _ = server.Close() })
	dir, err := os.MkdirTemp("", "holdfast-webhook-")
	if err != nil {
		return err
	}
	s.AtEnd(func() { _ = os.RemoveAll(dir) })
	call := func(token string, pairs int) (int, error) { return runClient(ctx, s, listener.Addr(), token, pairs) }

	var workers [2]*holdfast.Client
	for i := range workers {
		owner := &holdfast.Options{Owner: fmt.Sprint("worker ", i+1)}
		if workers[i], err = holdfast.Open(ctx, "file://"+dir+"/locks", owner); err != nil {
			return err
		}
		s.AtEnd(func() { _ = workers[i].Close() })
	}
	first, err := workers[0].Mutex("stock/shoe", nil).Lock(ctx)
	if err != nil {
		return err
	}
	s.Tell("worker 1 holds stock/shoe with token %d", first.Token())
	if code, err := call(fmt.Sprint(first.Token(), "; lock=stock%2Fshoe"), 42); err != nil || code != 0 {
		return fmt.Errorf("the first call: exit code %d, %v", code, err)
	}
	s.Tell("an operator breaks the lock of worker 1, which does not answer, and worker 2 gets it")
	if err := workers[1].Break(ctx, "stock/shoe", first.Ref(), holdfast.BreakForce, ""); err != nil {
		return err
	}
	second, err := workers[1].Mutex("stock/shoe", nil).Lock(ctx)
	if err != nil {
		return err
	}
	s.Tell("worker 2 holds stock/shoe with token %d", second.Token())
	if code, err := call(strconv.FormatInt(second.Token(), 10), 41); err != nil || code != 0 {
		return fmt.Errorf("the call of worker 2: exit code %d, %v", code, err)
	}
	s.Tell("worker 1 answers again, and knows nothing of this")
	if code, err := call(strconv.FormatInt(first.Token(), 10), 99); err != nil || code != 1 {
		return fmt.Errorf("the late call of worker 1: exit code %d, %v", code, err)
	}
	s.Tell("a caller has no lock, and makes a token up")
	if code, err := call("-1", 1000); err != nil || code != 2 {
		return fmt.Errorf("a call without a token: exit code %d, %v", code, err)
	}
	stock.mu.Lock()
	defer stock.mu.Unlock()
	s.Tell("there are %d pairs of shoes", stock.pairs["shoe"])
	if stock.pairs["shoe"] != 41 {
		return errors.New("the stock is wrong")
	}
	return nil
}

// runClient runs the client in Python, tells what it prints, and returns its exit code.
func runClient(ctx context.Context, s *story.Story, service net.Addr, token string, pairs int) (int, error) {
	url := "http://" + service.String() + "/stock/shoe"
	said, err := exec.CommandContext(ctx, "python3", "-c", clientProgram, url, token, strconv.Itoa(pairs)).Output()
	s.Tell("  client.py URL %q %d: %s", token, pairs, strings.TrimSpace(string(said)))
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if len(exit.Stderr) > 0 {
			return exit.ExitCode(), errors.New(string(exit.Stderr))
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}
