package serve

import (
	"bufio"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operator"
)

// Access knows who may do what. A nil Access lets everybody do everything.
type Access struct {
	byToken map[[sha256.Size]byte]*caller
	byName  map[string]*caller // of certificates
	// every caller with a certificate that the authority of --client-ca has signed may do everything
	anyCertificate bool
	certificate    *Certificate // knows the authorities; nil: no certificate counts
}

// NewCertificateAccess lets everybody with a valid client certificate do everything.
func NewCertificateAccess(c *Certificate) *Access {
	return &Access{anyCertificate: true, certificate: c}
}

// NewTokenAccess lets those who have this token do everything.
func NewTokenAccess(token string) (*Access, error) {
	if len(token) < minToken {
		return nil, errShortToken
	}
	return &Access{byToken: map[[sha256.Size]byte]*caller{sha256.Sum256([]byte(token)): {everything: true}}}, nil
}

// HasCertificates reports whether the file names client certificates.
func (a *Access) HasCertificates() bool { return a != nil && len(a.byName) > 0 }

// caller is who has sent a request.
type caller struct {
	name       string // empty: not known
	everything bool
	grants     []grantedRights
}

// grantedRights are the rights on all names with a prefix.
type grantedRights struct {
	prefix string
	rights operator.Rights
}

// rightsOn are the rights of a caller on one name.
func (c *caller) rightsOn(name string) (all operator.Rights) {
	if c.everything {
		return operator.Rights{See: true, Hold: true, Break: true}
	}
	for _, g := range c.grants {
		if strings.HasPrefix(name, g.prefix) {
			all.See = all.See || g.rights.See
			all.Hold = all.Hold || g.rights.Hold
			all.Break = all.Break || g.rights.Break
		}
	}
	return all
}

// seesEverything reports whether a caller may see all names.
func (c *caller) seesEverything() bool { return c.rightsOn("").See }

// limitKey is under which name the requests of a caller are counted.
func (c *caller) limitKey(r *http.Request) string {
	if c.name != "" {
		return "name " + c.name
	}
	return clientAddress(r)
}

// right is what a route asks of its caller. Each route has one: no right is not the same as rightNone.
type right int

const (
	rightNone right = iota + 1 // any caller: the answer has only what this caller may see, or nothing of any name
	rightSee                   // the right see on the name in the request, and so on
	rightHold
	rightBreak
	rightSeeAll // the right see on all names
)

// require returns an error if a caller does not have a right on a name.
func (s *Server) require(c *caller, needs right, name string) error {
	has := c.rightsOn(name)
	switch needs {
	case rightNone:
		return nil
	case rightSee:
		return requireRight(has.See, "see", name)
	case rightHold:
		return requireRight(has.Hold, "hold", name)
	case rightBreak:
		if !s.config.AllowBreak {
			return newProblem(codeBreakNotAllowed, "this server breaks nothing; it must be started with --allow-break")
		}
		return requireRight(has.Break, "break", name)
	case rightSeeAll:
		return requireRight(c.seesEverything(), "see", "")
	}
	return newProblem(codeForbidden, "nobody may do this")
}

// RightsOf are the rights of a request's caller on one name.
func RightsOf(r *http.Request, name string) operator.Rights { return callerOf(r).rightsOn(name) }

// CallerName is the name of a request's caller, or its address.
func CallerName(r *http.Request) string {
	if c := callerOf(r); c.name != "" {
		return c.name
	}
	return clientAddress(r)
}

// DescribeRights are the rights of a request's caller in words. A server may break nothing, whatever they are.
func DescribeRights(r *http.Request, allowBreak bool) []string {
	return callerOf(r).describeRights(allowBreak)
}

// MayBreak reports whether a request's caller may break some lock.
func MayBreak(r *http.Request) bool {
	c := callerOf(r)
	return c.everything || slices.ContainsFunc(c.grants, func(g grantedRights) bool { return g.rights.Break })
}

// describeRights says in words what the caller may do, for the page.
func (c *caller) describeRights(allowBreak bool) (all []string) {
	grants := c.grants
	if c.everything {
		grants = []grantedRights{{rights: operator.Rights{See: true, Hold: true, Break: true}}}
	}
	for _, g := range grants {
		var words []string
		for _, x := range []struct {
			has  bool
			word string
		}{{g.rights.See, "see"}, {g.rights.Hold, "hold"}, {g.rights.Break && allowBreak, "break"}} {
			if x.has {
				words = append(words, x.word)
			}
		}
		if len(words) == 0 {
			continue
		}
		names := "all names"
		if g.prefix != "" {
			names = "names that begin with " + g.prefix
		}
		all = append(all, strings.Join(words, ", ")+" "+names)
	}
	return all
}

func requireRight(has bool, right, name string) error {
	if has {
		return nil
	}
	p := newProblem(codeForbidden, "the right %q on this name is missing", right)
	p.Lock = name
	return p
}

// identify finds the caller of a request.
func (a *Access) identify(r *http.Request) (*caller, error) {
	if a == nil {
		return &caller{everything: true}, nil
	}
	certificate := a.certificate.ofClient(r)
	if certificate != nil {
		if c := a.ofCertificate(certificate); c != nil {
			return c, nil
		}
		if a.anyCertificate {
			return &caller{name: certificateName(certificate), everything: true}, nil
		}
	}
	token := ""
	if _, password, ok := r.BasicAuth(); ok { // browsers can send no other
		token = password
	} else if scheme, rest, _ := strings.Cut(r.Header.Get("Authorization"), " "); strings.EqualFold(scheme, "Bearer") {
		token = strings.TrimSpace(rest)
	}
	if token == "" {
		p := newProblem(codeUnauthorized, "send the header Authorization: Bearer TOKEN, with a token of the file that "+
			"--tokens of this server names")
		if certificate == nil && r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
			p = newProblem(codeUnauthorized, "the authority of this connection's client certificate is not trusted any more; "+
				"connect again with another certificate")
			p.reconnect = true
		}
		p.challenge = challengeOf(r)
		return nil, p
	}
	// How long the look-up of a hash takes tells nothing about a token that has it.
	if c := a.byToken[sha256.Sum256([]byte(token))]; c != nil {
		return c, nil
	}
	p := newProblem(codeUnauthorized, "this token is not known: it is none of the file that --tokens of this server names")
	p.challenge = challengeOf(r)
	return nil, p
}

// challengeOf says how to log in: a browser then asks its user for a password, which is the token.
func challengeOf(r *http.Request) string {
	if strings.HasPrefix(r.URL.Path, "/v1/") {
		return "Bearer"
	}
	return `Basic realm="holdfast: the password is a token", charset="UTF-8"`
}

// ofCertificate finds the caller by a name of the certificate: its common name, a DNS name or a URI, in this
// order.
func (a *Access) ofCertificate(certificate *x509.Certificate) *caller {
	if c := a.byName[certificate.Subject.CommonName]; c != nil && certificate.Subject.CommonName != "" {
		return c
	}
	for _, name := range certificate.DNSNames {
		if c := a.byName[name]; c != nil {
			return c
		}
	}
	for _, uri := range certificate.URIs {
		if c := a.byName[uri.String()]; c != nil {
			return c
		}
	}
	return nil
}

func certificateName(certificate *x509.Certificate) string {
	if certificate.Subject.CommonName != "" {
		return certificate.Subject.CommonName
	}
	return "certificate " + certificate.SerialNumber.String()
}

// ReadAccess reads the file of --tokens. Others must not be able to read it. Certificates of clients count as the
// authorities say that c has then.
func ReadAccess(path string, c *Certificate) (*Access, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("everybody on this machine can use %s; run chmod o= %s", path, path)
	}
	a, err := parseAccess(f, path)
	if err != nil {
		return nil, err
	}
	a.certificate = c
	return a, nil
}

// parseAccess reads lines of CREDENTIAL NAME RIGHTS PREFIX. Several lines may have the same credential.
func parseAccess(in io.Reader, path string) (*Access, error) {
	a := &Access{byToken: map[[sha256.Size]byte]*caller{}, byName: map[string]*caller{}}
	lines := bufio.NewScanner(in)
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := a.addLine(line); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, number, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(a.byToken)+len(a.byName) == 0 {
		return nil, fmt.Errorf("%s has no line, so nobody could use the server", path)
	}
	return a, nil
}

const lineForm = "a line is CREDENTIAL NAME RIGHTS PREFIX, such as sha256:HEX billing see,hold billing/"

// addLine adds the rights of one line. Its errors show no credential.
func (a *Access) addLine(line string) error {
	credential, rest := cutField(line)
	name, rest := cutField(rest)
	list, prefix := cutField(rest)
	if prefix == "" {
		return fmt.Errorf("it has fewer than four fields; %s (the prefix * is all names)", lineForm)
	}
	rights, err := parseRights(list)
	if err != nil {
		return err
	}
	switch {
	case prefix == "*":
		prefix = ""
	case strings.HasPrefix(prefix, `"`):
		if prefix, err = strconv.Unquote(prefix); err != nil {
			return fmt.Errorf("the prefix is quoted wrongly; write it as in JSON")
		}
	case strings.ContainsAny(prefix, " \t"):
		return fmt.Errorf("there is something behind the prefix; quote a prefix that has spaces")
	}
	who, err := a.callerWith(credential, name)
	if err != nil {
		return err
	}
	who.grants = append(who.grants, grantedRights{prefix, rights})
	return nil
}

func cutField(line string) (field, rest string) {
	if i := strings.IndexAny(line, " \t"); i >= 0 {
		return line[:i], strings.TrimSpace(line[i:])
	}
	return line, ""
}

// parseRights parses a list such as see,hold.
func parseRights(list string) (r operator.Rights, err error) {
	for _, right := range strings.Split(list, ",") {
		switch right {
		case "see":
			r.See = true
		case "hold":
			r.Hold = true
		case "break":
			r.Break = true
		default:
			return r, fmt.Errorf("%q is no right; there are see, hold and break, with commas and no spaces between them", right)
		}
	}
	return r, nil
}

// minToken is the length of the shortest token in plain text, in bytes.
const minToken = 16

var errShortToken = fmt.Errorf("the token has fewer than %d characters, so it can be guessed; "+
	"openssl rand -hex 32 makes one", minToken)

// callerWith is the caller that has a credential.
func (a *Access) callerWith(credential, name string) (*caller, error) {
	form, value, ok := strings.Cut(credential, ":")
	if !ok {
		return nil, fmt.Errorf("the credential must begin with sha256:, token: or cert:; %s", lineForm)
	}
	var hash [sha256.Size]byte
	switch form {
	case "cert":
		return addCaller(a.byName, value, name)
	case "sha256":
		bytes, err := hex.DecodeString(value)
		if err != nil || len(bytes) != sha256.Size {
			return nil, fmt.Errorf("the hash must have 64 hexadecimal digits; printf %%s TOKEN | sha256sum prints it")
		}
		copy(hash[:], bytes)
	case "token":
		if len(value) < minToken {
			return nil, errShortToken
		}
		hash = sha256.Sum256([]byte(value))
	default:
		return nil, fmt.Errorf("the credential must begin with sha256:, token: or cert:; %s", lineForm)
	}
	return addCaller(a.byToken, hash, name)
}

// addCaller returns the caller of a credential. All lines with one credential must give it the same name.
func addCaller[K comparable](all map[K]*caller, key K, name string) (*caller, error) {
	who := all[key]
	if who == nil {
		who = &caller{name: name}
		all[key] = who
	}
	if who.name != name {
		return nil, fmt.Errorf("the same credential has the name %q above, and %q here", who.name, name)
	}
	return who, nil
}
