package shown

import (
	"strings"

	"github.com/holdfast-go/holdfast"
)

// DescribeSurvives says for people what the claims and tokens of a store survive. An advisory store promises nothing
// whatever its settings are, although they may keep much.
func DescribeSurvives(i holdfast.Info) string {
	var list []string
	for _, x := range []struct {
		what string
		does bool
	}{
		{"a restart of the store", i.Survives.Restart}, {"a power cut", i.Survives.PowerCut},
		{"a failover", i.Survives.Failover},
	} {
		if x.does {
			list = append(list, x.what)
		}
	}
	switch {
	case len(list) > 0:
		return strings.Join(list, ", ")
	case i.Tier == holdfast.TierAdvisory:
		return "what the servers' settings keep on disk and on replicas; holdfast doctor examines them"
	}
	return "nothing"
}
