package storm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	_ "github.com/holdfast-go/holdfast/store/file"
)

// WorkerTask is what a worker process does. It is passed in its environment.
type WorkerTask struct {
	Store   string        // URL
	TTL     time.Duration //
	Witness string        // socket of the witness; empty: the guarded resource is File
	File    string        // a file with a number in it
	Until   time.Duration // how long to go on; who had no turn until then goes on until he had one
	Workers int           // goroutines
}

// Work is the main function of a worker process. It prints how many writes it has made.
func Work(o WorkerTask) error {
	client, err := holdfast.Open(context.Background(), o.Store, &holdfast.Options{TTL: o.TTL})
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), o.Until)
	defer cancel()
	mu := client.Mutex("storm", nil)
	var all sync.WaitGroup
	var sum sync.Mutex
	var made int
	var failed error
	for range o.Workers {
		all.Go(func() {
			n, err := o.runRounds(ctx, mu)
			sum.Lock()
			defer sum.Unlock()
			made += n
			failed = errors.Join(failed, err)
		})
	}
	all.Wait()
	fmt.Println(made)
	return failed
}

func (o WorkerTask) runRounds(ctx context.Context, mu *holdfast.Mutex) (made int, err error) {
	turn := o.addToFile
	if o.Witness != "" {
		conn, err := net.Dial("unix", o.Witness)
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		turn = (&witnessClient{conn: conn, lines: bufio.NewReader(conn)}).addToWitness
	}
	first, cancel := context.WithTimeout(context.Background(), o.Until+2*time.Minute)
	defer cancel()
	for {
		wait := ctx
		if made == 0 {
			wait = first
		}
		lease, err := mu.Lock(wait)
		if wait.Err() != nil {
			if err == nil {
				return made, lease.Release()
			}
			if made == 0 {
				return 0, fmt.Errorf("it never had a turn: %w", err)
			}
			return made, nil
		}
		if err != nil {
			return made, err
		}
		ok, err := turn(lease)
		if err != nil {
			return made, err
		}
		if ok {
			made++
		}
		if err := lease.Release(); err != nil && !errors.Is(err, holdfast.ErrLost) {
			return made, err
		}
	}
}

// addToFile reads the number in the file and writes it plus one.
func (o WorkerTask) addToFile(*holdfast.Lease) (bool, error) {
	data, err := os.ReadFile(o.File)
	if err != nil {
		return false, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return false, fmt.Errorf("two wrote at a time: %w", err)
	}
	return true, os.WriteFile(o.File, []byte(strconv.Itoa(n+1)), 0o600)
}

// witnessClient is a worker's connection to the witness.
type witnessClient struct {
	conn  net.Conn
	lines *bufio.Reader
}

func (r *witnessClient) addToWitness(lease *holdfast.Lease) (bool, error) {
	if a, err := r.sendRequest("hold", lease, 0); err != nil || a.Refused {
		return false, err
	}
	a, err := r.sendRequest("read", lease, 0)
	if err != nil {
		return false, err
	}
	time.Sleep(3 * time.Millisecond) // the work
	a, err = r.sendRequest("write", lease, a.Value+1)
	if err != nil || a.Refused {
		return false, err
	}
	_, err = r.sendRequest("done", lease, 0)
	return true, err
}

func (r *witnessClient) sendRequest(op string, lease *holdfast.Lease, value int64) (a Reply, err error) {
	line, err := json.Marshal(Request{Op: op, Pid: os.Getpid(), Token: lease.Token(), Value: value})
	if err != nil {
		return a, err
	}
	if _, err := r.conn.Write(append(line, '\n')); err != nil {
		return a, err
	}
	reply, err := r.lines.ReadBytes('\n')
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal(reply, &a)
}
