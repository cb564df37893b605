// Package requests counts the requests that servers have had, for benchmarks.
package requests

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// SumMetric adds up the values of a metric in the text format of Prometheus. A metric that is not there yet is 0.
func SumMetric(ctx context.Context, client *http.Client, url, name string) (sum int64, err error) {
	err = get(ctx, client, url, func(body io.Reader) error {
		lines := bufio.NewScanner(body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			text, ok := strings.CutPrefix(lines.Text(), name)
			if !ok || !strings.HasPrefix(text, "{") && !strings.HasPrefix(text, " ") {
				continue
			}
			value := strings.TrimSpace(text[strings.LastIndexByte(text, '}')+1:])
			f, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return fmt.Errorf("the metric %s of %s: %w", name, url, err)
			}
			sum += int64(f)
		}
		return lines.Err()
	})
	return sum, err
}

// NATS returns how many messages a NATS server has had from clients, by its monitoring port.
func NATS(ctx context.Context, port string) (int64, error) {
	var varz struct {
		InMsgs int64 `json:"in_msgs"`
	}
	err := get(ctx, http.DefaultClient, "http://127.0.0.1:"+port+"/varz", func(body io.Reader) error {
		return json.NewDecoder(body).Decode(&varz)
	})
	return varz.InMsgs, err
}

// Added returns a function that adds up what an emulator has counted since it was asked last, which it tells as
// "read 2, write 1".
func Added(counts func() string) func(context.Context) (int64, error) {
	var sum int64
	return func(context.Context) (int64, error) {
		for part := range strings.SplitSeq(counts(), ", ") {
			var kind string
			var n int64
			if _, err := fmt.Sscan(part, &kind, &n); err == nil {
				sum += n
			}
		}
		return sum, nil
	}
}

func get(ctx context.Context, client *http.Client, url string, read func(io.Reader) error) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	reply, err := client.Do(r)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, reply.Status)
	}
	return read(reply.Body)
}
