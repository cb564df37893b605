//go:build unix

package fence_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	_ "github.com/holdfast-go/holdfast/store/memory"
)

// The file rejects a holder that writes after the next one has written.
func ExampleWriteFile() {
	ctx := context.Background()
	client, err := holdfast.Open(ctx, "memory://fenced-file", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	report := filepath.Join(dir, "report.txt")

	var tokens []fence.Token // of the first holder and of the second
	for range 2 {
		lease, err := client.Mutex("report", nil).Lock(ctx)
		if err != nil {
			log.Fatal(err)
		}
		token, err := fence.Of(lease)
		if err != nil {
			log.Fatal(err)
		}
		tokens = append(tokens, token)
		_ = lease.Release() // or it is lost, while its process is frozen
	}
	fmt.Println(fence.WriteFile(ctx, report, []byte("by the second"), 0o600, tokens[1]))
	err = fence.WriteFile(ctx, report, []byte("by the first, too late"), 0o600, tokens[0])
	var stale *fence.StaleError
	fmt.Println(errors.As(err, &stale))
	data, err := os.ReadFile(report)
	fmt.Println(string(data), err)
	// Output:
	// <nil>
	// true
	// by the second <nil>
}
