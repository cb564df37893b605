package servertest_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/driver/drivertest/servertest"
)

// A test puts a link between its client and the server. Here the first reply is lost: the server has carried out the
// request, and the client does not know it.
func ExampleLink() {
	var served atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		served.Add(1)
		fmt.Fprint(w, "done")
	}))
	defer server.Close()
	link, err := servertest.NewLink(strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer link.Close()

	link.LoseReplies(1)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	_, err = client.Post("http://"+link.Addr, "text/plain", strings.NewReader("lock"))
	fmt.Println("failed:", err != nil, "served:", served.Load())

	reply, err := client.Post("http://"+link.Addr, "text/plain", strings.NewReader("lock"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer reply.Body.Close()
	text, _ := io.ReadAll(reply.Body)
	fmt.Println(string(text), served.Load())
	// Output:
	// failed: true served: 1
	// done 2
}
