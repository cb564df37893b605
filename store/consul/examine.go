package consul

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-go/holdfast/driver"
)

// The findings, without what was seen. The settings stand in the agents' configuration.
var (
	findingDev = driver.Finding{Code: "consul-dev", Severity: driver.SeverityCritical,
		What: "the server runs in development mode",
		Why:  "it forgets all locks and tokens when it ends",
		Fix:  "start it without -dev, and with a data_dir"}
	findingServers = driver.Finding{Code: "consul-servers", Severity: driver.SeverityWarning,
		What: "the cluster has two servers",
		Why:  "if one of the two fails, no claim can be made until it returns",
		Fix:  "run one server or three"}
	findingNode = driver.Finding{Code: "consul-agent-node", Severity: driver.SeverityWarning,
		Why: "a restart of that agent, or of its machine, ends all locks although their holders are at work",
		Fix: "leave node out of the URL, or name a node on which no agent runs"}
	findingConns = driver.Finding{Code: "consul-connections", Severity: driver.SeverityWarning,
		Why: fmt.Sprintf("the limit is per address, for all processes there together; a client with many waiters has %d "+
			"connections, and one that is refused a connection cannot renew its locks", maxConns),
		Fix: fmt.Sprintf("set limits { http_max_conns_per_client = 200 } or more, and at least %d for each process that "+
			"uses this agent", maxConns)}
	findingPlain = driver.Finding{Code: "consul-plain", Severity: driver.SeverityWarning,
		What: "the connection to an agent on another machine is not encrypted",
		Why:  "an attacker between this client and the agent can read the token and impersonate the agent",
		Fix:  "use the agent on this machine, or set tls=true in the URL"}
	findingUnseen = driver.Finding{Code: "consul-unseen", Severity: driver.SeverityUnknown,
		What: "the agent's settings cannot be seen",
		Fix:  `give the token the rule agent_prefix "" { policy = "read" }, or look yourself`}
)

// minConns is how many connections an agent should take from one address: those of a few processes.
const minConns = 4 * maxConns

// Examine looks at the agent's settings, the number of servers, and the node of the sessions.
func (s *store) Examine(ctx context.Context) ([]driver.Finding, error) { return s.nodes.examine(ctx) }

// examine asks the agent and the servers for what can harm locks.
func (t *nodeStore) examine(ctx context.Context) (all []driver.Finding, err error) {
	query := (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
	checks, _, err := t.client.Health().Node(t.opts.Node, query)
	if err != nil {
		return nil, t.explainError(err)
	}
	for _, c := range checks {
		if c.CheckID == "serfHealth" {
			all = append(all, findingNode.With("", fmt.Sprintf("sessions belong to the node %s, on which an agent runs",
				t.opts.Node)))
		}
	}
	peers, err := t.client.Status().PeersWithQueryOptions(query)
	if err != nil {
		return nil, t.explainError(err)
	}
	if len(peers) == 2 {
		all = append(all, findingServers)
	}
	if t.isPlain {
		all = append(all, findingPlain)
	}
	found, err := t.examineAgent(ctx)
	return append(all, found...), err
}

// examineAgent looks at the agent that this client talks to. Only its settings in full have what matters.
func (t *nodeStore) examineAgent(ctx context.Context) (all []driver.Finding, err error) {
	var self map[string]map[string]any
	// Not the client's own Self, which has no context.
	_, err = t.client.Raw().Query("/v1/agent/self", &self, (&api.QueryOptions{}).WithContext(ctx))
	if err = t.explainError(err); errors.Is(err, driver.ErrDenied) {
		return []driver.Finding{findingUnseen}, nil
	}
	if err != nil {
		return nil, err
	}
	settings := self["DebugConfig"]
	if isDev, _ := settings["DevMode"].(bool); isDev {
		all = append(all, findingDev)
	}
	if n, ok := settings["HTTPMaxConnsPerClient"].(float64); ok && n > 0 && n < minConns {
		all = append(all, findingConns.With("", fmt.Sprintf("http_max_conns_per_client is %.0f", n)))
	}
	return all, nil
}
