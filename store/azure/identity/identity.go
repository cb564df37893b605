// Package identity gives the store for Azure Blob Storage tokens of Microsoft Entra ID: of managed identities, workload
// identities, service principals in the environment and the user of the az command. It is a package of its own, because
// it uses Microsoft's library for that (azidentity), by which a program is larger by about 3 MB. To import it is enough
// for URLs:
//
//	import _ "github.com/holdfast-go/holdfast/store/azure/identity"
//
//	client, err := holdfast.Open(ctx, "azure://account/container", nil)
//
// A program that has a credential of that library passes it:
//
//	credential, err := azidentity.NewManagedIdentityCredential(nil)
//	store, err := azure.New(ctx, http.DefaultClient, "https://account.blob.core.windows.net/container",
//		&azure.Options{Credentials: azure.Token(identity.Tokens(credential))})
package identity

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil/httpclient"
	"github.com/holdfast-go/holdfast/store/azure"
)

func init() { azure.RegisterIdentities(find) }

// find makes the credential of an identity. It sends nothing.
func find(which azure.Identity, clientID string, client *http.Client) (func(context.Context) (string, error), error) {
	options := policy.ClientOptions{Transport: httpclient.NoRedirects(client)}
	options.Retry.MaxRetries = -1 // the store tries again
	makers := map[azure.Identity]func() (azcore.TokenCredential, error){
		azure.IdentityEnvironment: func() (azcore.TokenCredential, error) {
			return azidentity.NewEnvironmentCredential(&azidentity.EnvironmentCredentialOptions{ClientOptions: options})
		},
		azure.IdentityWorkload: func() (azcore.TokenCredential, error) {
			return azidentity.NewWorkloadIdentityCredential(
				&azidentity.WorkloadIdentityCredentialOptions{ClientOptions: options, ClientID: clientID})
		},
		azure.IdentityManaged: func() (azcore.TokenCredential, error) {
			o := &azidentity.ManagedIdentityCredentialOptions{ClientOptions: options}
			if clientID != "" {
				o.ID = azidentity.ClientID(clientID)
			}
			return azidentity.NewManagedIdentityCredential(o)
		},
		azure.IdentityCLI: func() (azcore.TokenCredential, error) { return azidentity.NewAzureCLICredential(nil) },
	}
	if which != azure.IdentityDefault {
		c, err := makers[which]()
		if err != nil {
			return nil, fmt.Errorf("no identity: %w", err)
		}
		return Tokens(c), nil
	}
	var chain []azcore.TokenCredential
	for _, which := range []azure.Identity{azure.IdentityEnvironment, azure.IdentityWorkload, azure.IdentityManaged,
		azure.IdentityCLI} {
		if c, err := makers[which](); err == nil { // else its variables are not set
			chain = append(chain, c)
		}
	}
	c, err := azidentity.NewChainedTokenCredential(chain, nil)
	if err != nil {
		return nil, fmt.Errorf("no identity: %w", err)
	}
	return Tokens(c), nil
}

// renewBefore is how long before its end a token is replaced.
const renewBefore = 5 * time.Minute

// Tokens returns a function for [azure.Token]. It asks the credential for a token when the last one is about to expire,
// and uses the last one as long as it is valid if that fails.
func Tokens(credential azcore.TokenCredential) func(context.Context) (string, error) {
	turn := make(chan struct{}, 1)
	var token azcore.AccessToken
	return func(ctx context.Context) (string, error) {
		select { // one asks at a time
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return "", ctx.Err()
		}
		left := time.Until(token.ExpiresOn)
		if token.Token != "" && left > renewBefore {
			return token.Token, nil
		}
		next, err := credential.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{azure.TokenScope}})
		switch {
		case err == nil && next.Token == "":
			return "", fmt.Errorf("%w: the credential gives an empty token", driver.ErrInvalid)
		case err == nil:
			token = next
		case token.Token == "" || left <= 0:
			return "", err
		}
		return token.Token, nil
	}
}
