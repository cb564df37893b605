package servepage

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast"
)

const (
	// ledgersInterval is the pause between two listings of all ledgers while somebody looks. It is longer than that
	// of one ledger, because it reads more.
	ledgersInterval = time.Minute
	// ledgersWait is how long the page of the locks waits for such a listing. It is then shown without it.
	ledgersWait = 2 * time.Second
)

// ledgerKey is a key of a ledger, and whether an operator should look at it.
type ledgerKey struct {
	ledger, key    string
	needsAttention bool
}

// allLedgers is what the store has listed of all ledgers: as many keys as are listed of one.
type allLedgers struct{ keys []ledgerKey }

// listLedgers lists the keys of all ledgers. A store that keeps no runs has none. What is wrong with a ledger is said
// where its runs are shown.
func (p *Page) listLedgers(ctx context.Context) (all allLedgers) {
	for run, err := range p.opts.Client.ListRuns(ctx) {
		if err != nil && run.Key == "" || len(all.keys) == maxRuns {
			break
		}
		all.keys = append(all.keys, ledgerKey{run.Ledger, run.Key, err != nil || runNeedsAttention(run)})
	}
	slices.SortFunc(all.keys, func(a, b ledgerKey) int {
		return cmp.Or(cmp.Compare(a.ledger, b.ledger), cmp.Compare(a.key, b.key))
	})
	return all
}

// runNeedsAttention reports whether an operator should look at a key by its last run.
func runNeedsAttention(run holdfast.RunInfo) bool {
	return run.State == holdfast.RunFailed || run.State == holdfast.RunAbandoned
}

// ledgerCount is how many keys of a ledger the viewer may see.
type ledgerCount struct{ keys, attention int }

// countLedgers counts the keys that the sender of a request may see, by their ledgers. There are those that the page
// offers, too, if the viewer may see a key of theirs.
func (p *Page) countLedgers(r *http.Request, all allLedgers) map[string]ledgerCount {
	counts := map[string]ledgerCount{}
	for _, name := range p.opts.Ledgers {
		if p.rights(r, name+"/").See {
			counts[name] = ledgerCount{}
		}
	}
	for _, k := range all.keys {
		if !p.rights(r, k.ledger+"/"+k.key).See {
			continue
		}
		n := counts[k.ledger]
		n.keys++
		if k.needsAttention {
			n.attention++
		}
		counts[k.ledger] = n
	}
	return counts
}

// ledgerTiles are links to all ledgers that the viewer may see.
func (p *Page) ledgerTiles(chosen string, counts map[string]ledgerCount) markup {
	var tiles []markup
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		n := counts[name]
		class, words := "tile", fmt.Sprintf(" %d keys", n.keys)
		if n.keys == 1 {
			words = " 1 key"
		}
		if n.attention > 0 {
			class, words = "tile alarm", words+fmt.Sprintf(", %d failed or abandoned", n.attention)
		}
		tiles = append(tiles, element("li", nil, element("a", attrs{"href", buildURL("/runs", "ledger", name), "class", class,
			"aria-current", attrIf(name == chosen, "true")}, element("strong", nil, nameText(name)), plain(words))))
	}
	return element("ul", attrs{"class", "tiles", "aria-label", "Ledgers"}, tiles...)
}

// failedRunsTile counts the keys that need attention, and leads to the first ledger that has one. It is empty if
// there are no ledgers.
func (p *Page) failedRunsTile(r *http.Request) markup {
	ctx, cancel := context.WithTimeout(r.Context(), ledgersWait)
	defer cancel()
	all, err := p.ledgers.get(ctx)
	if err != nil || len(all.keys) == 0 {
		return ""
	}
	counts, failed, first := p.countLedgers(r, all), 0, ""
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if n := counts[name].attention; n > 0 {
			failed += n
			if first == "" {
				first = name
			}
		}
	}
	class := "tile"
	if failed > 0 {
		class = "tile alarm"
	}
	words := map[bool]string{true: " run needs attention", false: " runs need attention"}[failed == 1]
	return element("li", nil, element("a", attrs{"href", buildURL("/runs", "ledger", first), "class", class},
		element("strong", nil, number(failed)), plain(words)))
}
