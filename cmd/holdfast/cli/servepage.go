package cli

import (
	"net/http"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operator"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/serve"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/servepage"
)

// newServePage makes the page of serve. server returns the server that shows it, whose rights and audit log count.
func newServePage(client *holdfast.Client, allowBreak bool, server func() *serve.Server) *servepage.Page {
	return servepage.New(servepage.Options{
		Client: client, Store: client.Info().Store, AllowBreak: allowBreak, Doctor: client.Examine,
		Ledgers: []string{defaultLedger},
		Viewer: func(r *http.Request) servepage.Viewer {
			return servepage.Viewer{Name: serve.CallerName(r), Rights: serve.DescribeRights(r, allowBreak),
				MayBreak: serve.MayBreak(r)}
		},
		Rights: serve.RightsOf,
		Audit: func(r *http.Request, e operator.Entry) (finish func(error), err error) {
			return server().BeginAudit(r, e)
		},
		Refused: func(r *http.Request, e operator.Entry) { server().AuditRefused(r, e) },
	})
}
