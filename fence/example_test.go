package fence_test

import (
	"context"
	"database/sql"
	"log"
	"net/http"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
)

// The check is in the transaction that writes, so nobody can write between the two.
func ExampleSQL() {
	_ = func(ctx context.Context, db *sql.DB, lease *holdfast.Lease) error {
		stockFence, err := fence.NewSQL(fence.PostgreSQL, "") // once, at the start of the program
		if err != nil {
			return err
		}
		if err := stockFence.Migrate(ctx, db); err != nil {
			return err
		}

		token, err := fence.Of(lease)
		if err != nil {
			return err
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := stockFence.Check(ctx, tx, lease.Name(), token); err != nil {
			return err // a *fence.StaleError if another holder has written since
		}
		if _, err := tx.ExecContext(ctx, `update stock set pairs = pairs - 1 where item = 'shoe'`); err != nil {
			return err
		}
		return tx.Commit()
	}
}

// A service that writes nothing for callers whose lease has ended.
func ExampleGuard() {
	guard := &fence.Guard{
		Gate:     &fence.MemoryGate{}, // NewSQLGate for a service with several processes
		Resource: func(r *http.Request) string { return "stock/" + r.PathValue("item") },
	}
	mux := http.NewServeMux()
	mux.Handle("PUT /stock/{item}", guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// write
	})))
	_ = func() { log.Fatal(http.ListenAndServe("127.0.0.1:8080", mux)) }
}

// A client of such a service.
func ExampleTransport() {
	_ = func(lease *holdfast.Lease, r *http.Request) error {
		client := &http.Client{Transport: &fence.Transport{Holder: lease}}
		reply, err := client.Do(r)
		if err != nil {
			return err
		}
		defer reply.Body.Close()
		return fence.ResponseError(reply)
	}
}
