package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/shown"
)

// The JSON of this command is a contract: docs/json-schema.json describes each record, docs/json.md explains it, and
// the tests check all output against the schema. A record is one object on one line. Times are in UTC, durations are
// whole milliseconds under a key that ends in _ms, and what a program may decide by is a code; texts for people are in
// message.

// fields are the keys and values of a record.
type fields map[string]any

// recordType says what a record is about. It is the value of its key type.
type recordType string

const (
	recordLock           recordType = "lock"            // list, show, watch
	recordHold           recordType = "hold"            // hold
	recordHandle         recordType = "handle"          // acquire
	recordBreak          recordType = "break"           // break
	recordReleaseRequest recordType = "release_request" // request-release
	recordRun            recordType = "run"             // runs
	recordHistory        recordType = "history"         // ledger show
	recordRetry          recordType = "retry"           // ledger retry
	recordForget         recordType = "forget"          // ledger forget
	recordToken          recordType = "token"           // token show
	recordTokenFloor     recordType = "token_floor"     // token floor
	recordPlan           recordType = "plan"            // explain
	recordStore          recordType = "store"           // stores
	recordStoreKind      recordType = "store_kind"      // stores --compare
	recordStoreOption    recordType = "store_option"    // stores --options
	recordDiagnosis      recordType = "diagnosis"       // doctor
	recordTorture        recordType = "torture"         // torture
	recordServe          recordType = "serve"           // serve
	recordAudit          recordType = "audit"           // --audit-log of serve
	recordVersion        recordType = "version"         // version
	recordEvent          recordType = "event"           // --events of run, hold and once
)

// addJSONFlag adds the flag --json, which means the same on each subcommand that has it.
func addJSONFlag(c *cobra.Command, asJSON *bool) {
	c.Flags().BoolVar(asJSON, "json", false, "print JSON, one object per line")
}

// originFields say which program has written a record: on which host, for which user, and its version.
var originFields = sync.OnceValue(func() fields {
	host, _ := os.Hostname() // empty if it is not known
	return fields{"host": host, "user": userName(), "version": buildVersion()}
})

// newRecord is a record with the fields that all have.
func newRecord(kind recordType, f fields) fields {
	record := fields{"type": kind, "time": shown.FormatTime(time.Now())}
	maps.Copy(record, originFields())
	if f["store"] != nil {
		maps.Copy(record, storeSourceFields())
	}
	maps.Copy(record, f)
	return record
}

// storeSourceFields say where the URL of the store is from.
func storeSourceFields() fields {
	choice := usedStore.Load()
	switch {
	case choice == nil:
		return nil
	case choice.source == "":
		return fields{"store_source": "default"}
	case choice.source == "--store":
		return fields{"store_source": "flag"}
	case choice.source == "HOLDFAST_STORE":
		return fields{"store_source": "environment"}
	}
	return fields{"store_source": "file", "store_source_line": choice.source}
}

// writeRecord writes a record as one line.
func writeRecord(w io.Writer, kind recordType, f fields) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	return out.Encode(newRecord(kind, f))
}

// writeObject writes a record that has the keys and values of an object, besides others.
func writeObject(w io.Writer, kind recordType, f fields, object any) error {
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	out.SetEscapeHTML(false)
	if err := out.Encode(object); err != nil {
		return err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text.Bytes(), &all); err != nil {
		return err
	}
	for name, value := range all {
		f[name] = value
	}
	return writeRecord(w, kind, f)
}

// writeLockJSON writes the state of a lock.
func writeLockJSON(w io.Writer, info holdfast.Info, lock holdfast.Lock) error {
	return writeObject(w, recordLock, fields{"store": info.Store}, shown.NewLock(info, lock, shown.PlainRef))
}

// ledgerName is the place of a ledger: its store and its name.
type ledgerName struct{ store, ledger string }

// fields returns what all records of the ledger have.
func (n ledgerName) fields(key string) fields {
	return fields{"store": n.store, "ledger": n.ledger, "key": key}
}

// writeRunJSON writes the last run of a key, without its result.
func writeRunJSON(w io.Writer, from ledgerName, run holdfast.RunInfo, resultSize int) error {
	return writeObject(w, recordRun, from.fields(run.Key), shown.NewRun(run, resultSize))
}

// writeHistoryJSON writes runs of a key, with the result. earlier: there are others before them.
func writeHistoryJSON(w io.Writer, from ledgerName, key string, runs []holdfast.RunInfo, earlier bool) error {
	f := from.fields(key)
	records := make([]shown.Run, len(runs))
	for i, run := range runs {
		records[i] = shown.NewRunWithResult(run).WithoutKey()
	}
	f["runs"], f["earlier"] = records, earlier
	return writeRecord(w, recordHistory, f)
}

// runAsJSON is a run where its key is told before.
func runAsJSON(run holdfast.RunInfo) shown.Run {
	return shown.NewRun(run, len(run.Result)).WithoutKey()
}
