package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// slowLink forwards requests to DynamoDB. A PutItem stays on the way until the story delivers it, even if the process
// that has sent it is gone, as it can happen in a network.
type slowLink struct {
	url    string
	to     string
	server *http.Server

	held   chan struct{} // has one value when a PutItem is on the way
	arrive chan struct{}
	answer chan string // to the PutItem
}

func newSlowLink(to string) (*slowLink, error) {
	listener, err := servertest.Listen()
	if err != nil {
		return nil, err
	}
	l := &slowLink{url: "http://" + listener.Addr().String(), to: to,
		held: make(chan struct{}, 1), arrive: make(chan struct{}), answer: make(chan string, 1)}
	l.server = &http.Server{Handler: l}
	go func() { _ = l.server.Serve(listener) }()
	return l, nil
}

func (l *slowLink) close() { _ = l.server.Close() }

// ServeHTTP forwards a request.
func (l *slowLink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	isPut := strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".PutItem")
	if isPut {
		l.held <- struct{}{}
		<-l.arrive
	}
	code, reply := 0, []byte(nil)
	request, err := http.NewRequest(r.Method, l.to+r.URL.Path, bytes.NewReader(body)) // without the context of r
	if err == nil {
		request.Header = r.Header.Clone()
		code, reply, err = send(request)
	}
	if isPut {
		l.answer <- describeReply(code, reply, err)
	}
	if err == nil {
		w.WriteHeader(code)
		_, _ = w.Write(reply)
	}
}

func send(r *http.Request) (code int, body []byte, err error) {
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

// deliver lets the PutItem arrive, and returns the answer in words.
func (l *slowLink) deliver() string {
	l.arrive <- struct{}{}
	return <-l.answer
}

const rejected = "REJECTED"

// describeReply says what DynamoDB has answered.
func describeReply(code int, body []byte, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case bytes.Contains(body, []byte("ConditionalCheckFailedException")):
		return rejected + ", because the parcel has a larger token"
	default:
		return fmt.Sprintf("%d %s", code, body)
	}
}
