package main

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

// metricCounter reads a metric of a server, summed over its labels.
func metricCounter(client *http.Client, url, name string) func(context.Context, workers) (int64, error) {
	return func(ctx context.Context, _ workers) (int64, error) { return sumMetric(ctx, client, url, name) }
}

// sumMetric adds up the values of a metric in the text format of Prometheus. A metric that is not there yet is 0.
func sumMetric(ctx context.Context, client *http.Client, url, name string) (sum int64, err error) {
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

func getJSON(ctx context.Context, url string, into any) error {
	return get(ctx, http.DefaultClient, url, func(body io.Reader) error { return json.NewDecoder(body).Decode(into) })
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
