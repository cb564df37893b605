package azure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/driver/driverutil/storeurl"
)

func init() { driver.Register("azure", openURL, storeurl.Describe((*storeURL).form)) }

// Identity names where a token comes from.
type Identity string

// All identities that a URL can ask for. IdentityDefault tries them in this order, after the environment's: workload,
// managed, cli.
const (
	IdentityDefault     Identity = "default"
	IdentityEnvironment Identity = "environment"
	IdentityWorkload    Identity = "workload"
	IdentityManaged     Identity = "managed"
	IdentityCLI         Identity = "cli"
)

var identities = []Identity{IdentityDefault, IdentityEnvironment, IdentityWorkload, IdentityManaged, IdentityCLI}

// IdentitySource finds the tokens of an identity, with which it asks with that client. clientID chooses one of several
// managed or workload identities; empty: the machine's own.
type IdentitySource func(which Identity, clientID string, client *http.Client) (func(context.Context) (string, error), error)

var identitySource atomic.Pointer[IdentitySource]

// RegisterIdentities makes URLs use a source of tokens. Package [github.com/holdfast-go/holdfast/store/azure/identity]
// calls it.
func RegisterIdentities(find IdentitySource) { identitySource.Store(&find) }

// storeURL is what a URL says, and the environment for what it does not say.
type storeURL struct {
	account, path      string
	endpoint           string
	key, sas, connects driverutil.Secret
	identity           Identity
	clientID           string
	opts               Options

	container string
	useToken  bool
}

func (s *storeURL) form() *storeurl.Form {
	return &storeurl.Form{
		Shape:       "azure://account/container",
		Credentials: "use the options key-file, sas-file, connection-string-file or identity, or what the az command uses",
		Host:        &s.account, Path: &s.path,
		Options: []storeurl.Option{
			storeurl.Prefix(&s.opts.Prefix, "put before the names of all blobs, such as `locks/`", ""),
			{Name: "key-file", To: storeurl.SecretFile(&s.key), Default: "`$AZURE_STORAGE_KEY`",
				Means: "a file with a key of the account"},
			{Name: "sas-file", To: storeurl.SecretFile(&s.sas), Default: "`$AZURE_STORAGE_SAS_TOKEN`",
				Means: "a file with a shared access signature"},
			{Name: "connection-string-file", To: storeurl.SecretFile(&s.connects),
				Default: "`$AZURE_STORAGE_CONNECTION_STRING`", Means: "a file with a connection string of the account"},
			{Name: "identity", To: storeurl.OneOf(&s.identity, identities...),
				Default: "`default`, if there is no key, signature or connection string",
				Means: "whose token to use: a service principal of the environment, a workload or managed identity, the " +
					"user of the az command, or the first of these that there is"},
			{Name: "client-id", To: storeurl.Text(&s.clientID),
				Means: "which managed or workload identity, if there are several"},
			storeurl.Layout(&s.opts.Layout, "`lease` is that of clients that lease blobs, such as DistributedLock.Azure and "+
				"Terraform's backend azurerm; it is for the mutex", layouts...),
			{Name: "endpoint", To: storeurl.Address(&s.endpoint), Default: "`https://ACCOUNT.blob.core.windows.net`",
				Means: "the address of the account in another cloud or an emulator, such as " +
					"`http://localhost:10000/devstoreaccount1`"},
		},
		Check: s.check,
	}
}

// check finds the container and the credentials.
func (s *storeURL) check() error {
	s.container = strings.TrimSuffix(s.path, "/")
	if strings.Contains(s.container, "/") {
		return s.form().Refuse("has a path with more than the container (write ?prefix=... for what the blobs' names begin with)")
	}
	var given []string
	for name, is := range map[string]bool{"key-file": s.key.IsFile(), "sas-file": s.sas.IsFile(),
		"connection-string-file": s.connects.IsFile(), "identity": s.identity != ""} {
		if is {
			given = append(given, name)
		}
	}
	switch {
	case len(given) > 1:
		return storeurl.RefuseBoth("the option "+min(given[0], given[1]), "the option "+max(given[0], given[1]))
	case s.clientID != "" && (len(given) == 1 && s.identity == ""):
		return storeurl.RefuseBoth("the option client-id", "the option "+given[0])
	case len(given) == 0:
		s.readEnvironment()
	}
	if err := s.findCredentials(); err != nil {
		return err
	}
	s.endpoint = cmp.Or(s.endpoint, "https://"+s.account+".blob.core.windows.net")
	_, err := s.opts.withDefaults()
	return err
}

// readEnvironment reads the variables by which the az command finds credentials, unless they are for another account.
func (s *storeURL) readEnvironment() {
	if s.clientID != "" {
		return
	}
	if c, err := parseConnection(os.Getenv("AZURE_STORAGE_CONNECTION_STRING")); err == nil && c.account == s.account {
		s.connects.SetText(os.Getenv("AZURE_STORAGE_CONNECTION_STRING"))
		return
	}
	if account := os.Getenv("AZURE_STORAGE_ACCOUNT"); account == "" || account == s.account {
		s.key.SetText(os.Getenv("AZURE_STORAGE_KEY"))
		s.sas.SetText(os.Getenv("AZURE_STORAGE_SAS_TOKEN"))
	}
}

// findCredentials makes credentials of the secret that there is. Those of a file are checked now, and read again for
// each request.
func (s *storeURL) findCredentials() error {
	use := func(secret *driverutil.Secret, read func(string) (Credentials, error)) error {
		s.opts.Credentials, s.opts.sources = current(secret, read), secret.Sources()
		_, err := read(secret.Current())
		return err
	}
	switch {
	case s.connects.Current() != "":
		c, err := parseConnection(s.connects.Current())
		if err == nil && c.account != "" && c.account != s.account {
			return fmt.Errorf("%w: the connection string is for another account than the store's URL", driver.ErrInvalid)
		}
		s.endpoint = cmp.Or(s.endpoint, c.endpoint)
		return cmp.Or(err, use(&s.connects, func(text string) (Credentials, error) {
			c, err := parseConnection(text)
			return c.credentials, err
		}))
	case s.key.Current() != "":
		return use(&s.key, func(text string) (Credentials, error) { return SharedKey(s.account, text) })
	case s.sas.Current() != "":
		return use(&s.sas, SharedAccessSignature)
	}
	s.useToken = true
	return nil
}

// maxIdleConns is how many idle connections are kept for requests that are sent at the same time, such as renewals.
const maxIdleConns = 64

// openURL opens a store by its URL. Without a key or a SAS, the package for identities must be in the program.
func openURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	s := &storeURL{}
	if err := s.form().Read(u); err != nil {
		return nil, err
	}
	link := http.DefaultTransport.(*http.Transport).Clone()
	link.MaxIdleConnsPerHost = maxIdleConns
	if dial := driverutil.DialerOf(ctx); dial != nil {
		link.DialContext = dial
	}
	client := &http.Client{Transport: link}
	if s.useToken {
		find := identitySource.Load()
		if find == nil {
			return nil, driverutil.RefuseStore(errors.New("there are no credentials: set key-file, sas-file or " +
				"connection-string-file in the store's URL; this program does not contain the package for identities"))
		}
		tokens, err := (*find)(cmp.Or(s.identity, IdentityDefault), s.clientID, client)
		if err != nil {
			return nil, driverutil.RefuseStore(err)
		}
		s.opts.Credentials = Token(tokens)
	}
	s.opts.place = "azure://" + s.account + "/" + s.container + "/" + s.opts.Prefix
	open := func(ctx context.Context) (driver.Store, error) {
		t, err := newTable(ctx, client, s.endpoint+"/"+s.container, &s.opts)
		if err != nil {
			return nil, err
		}
		t.closeClient = func() error {
			link.CloseIdleConnections()
			return nil
		}
		return newStore(t, &s.opts), nil
	}
	store, err := driverutil.OpenWithRetry(ctx, open)
	if err != nil {
		link.CloseIdleConnections()
	}
	return store, err
}
