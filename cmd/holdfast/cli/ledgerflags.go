package cli

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
)

// defaultLedger is the ledger of once and of ledger if --ledger is not given.
const defaultLedger = "once"

// ledgerFlags say in which ledger the runs of keys are kept.
type ledgerFlags struct {
	store  *string
	ledger string
}

func (f *ledgerFlags) addFlags(c *cobra.Command) {
	f.ledger = defaultLedger
	c.Flags().Var(nonEmptyString{&f.ledger}, "ledger",
		"`NAME` of the ledger that keeps the runs (default \""+defaultLedger+"\")")
}

// openLedger returns the ledger of a client. opts may be nil.
func (f *ledgerFlags) openLedger(client *holdfast.Client, opts *holdfast.LedgerOptions) *holdfast.Ledger {
	return client.Ledger(f.ledger, opts)
}
