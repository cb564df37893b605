package storeurl

import (
	"time"

	"github.com/holdfast-go/holdfast/driver/driverutil"
)

// Layout is the option layout. means says what the layouts are, of which the first is the default.
func Layout[L ~string](to *L, means string, layouts ...L) Option {
	v := OneOf(to, layouts...)
	v.set = func(text string) error {
		*to = L(text)
		return driverutil.CheckLayout(*to, layouts...)
	}
	return Option{Name: "layout", To: v, Default: "`" + string(layouts[0]) + "`", Means: means}
}

// PasswordFile is the option password-file.
func PasswordFile(password *driverutil.Secret) Option {
	return Option{Name: "password-file", To: SecretFile(password),
		Means: "a file that contains the password, which keeps it out of the URL"}
}

// TokenFile is the option token-file.
func TokenFile(token *driverutil.Secret, means string) Option {
	return Option{Name: "token-file", To: SecretFile(token), Means: means}
}

// Prefix is the option prefix.
func Prefix(to *string, means, usual string) Option {
	return Option{Name: "prefix", To: Text(to), Default: usual, Means: means}
}

// Timeout is the option timeout.
func Timeout(to *time.Duration, usual, least time.Duration) Option {
	return Option{Name: "timeout", To: Duration(to, least, 0), Default: "`" + formatDuration(usual) + "`",
		Means: "how long an answer may take before the connection counts as lost"}
}

// Create is the option create; what is the thing that is made.
func Create(to *bool, what string) Option {
	return Option{Name: "create", To: Bool(to), Means: "make the " + what + " if there is none"}
}

// ClockSkew is the option clock-skew. means adds where it counts.
func ClockSkew(to *time.Duration, usual string, layouts []string) Option {
	return Option{Name: "clock-skew", To: Duration(to, time.Millisecond, 0), Default: usual, Layouts: layouts,
		Means: "how far the clocks of servers that take writes may be apart"}
}

// WriteInterval is the option write-interval. Where it is 0, the field is negative, which means that there is none.
func WriteInterval(to *time.Duration, usual string) Option {
	v := Duration(to, 0, 0)
	return Option{Name: "write-interval", Default: usual, Means: "how long a new claim that can wait leaves a lock alone " +
		"after its last write; `0`: not at all", To: Value{kind: v.kind, set: func(text string) error {
		err := v.set(text)
		if err == nil && *to == 0 {
			*to = -1
		}
		return err
	}}}
}

// ForeignAge is the option foreign-age of the layouts of clients that do not renew.
func ForeignAge[L ~string](to *time.Duration, what string, layouts ...L) Option {
	return Option{Name: "foreign-age", To: Duration(to, 0, 0), Default: "never", Layouts: For(layouts...),
		Means: "the age at which " + what + " counts as left by a dead process"}
}

// tlsOptions are the options about TLS, which are the same for all stores.
func tlsOptions(o *driverutil.TLSOptions) []Option {
	return []Option{
		{Name: "tls", Means: "encrypt, and check the servers' certificates; each of the following options does so too",
			To: Func("true or false", func(text string) error {
				err := Bool(&o.On).set(text)
				o.Off = !o.On
				return err
			})},
		{Name: "tls-ca", To: File(&o.CA), Default: "the system's",
			Means: "a file of certificate authorities to trust, in PEM"},
		{Name: "tls-cert", To: File(&o.Cert), Means: "a file with this client's own certificate, in PEM"},
		{Name: "tls-key", To: File(&o.Key), Means: "a file with the key of that certificate"},
		{Name: "tls-name", To: Text(&o.Name), Default: "the host",
			Means: "the name that the servers' certificates are checked for"},
	}
}
