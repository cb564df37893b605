// Package nats keeps locks in a key-value bucket of NATS JetStream: one key per lock, which is replaced if its revision
// is the expected one.
//
// # Time
//
// The clock of the bucket's leader decides when a claim has expired, so the clocks of the clients do not matter.
// Another server may become the leader. So in a cluster, claims are removed later by as much as the clocks of the
// servers may be apart: Options.ClockSkew.
//
// # Waiting
//
// A client that waits for a lock watches its key. It is woken by the change, and polls only rarely.
//
// # Safety
//
// Each change is a write that the bucket's leader refuses if the key has another revision. Reads go to the leader as
// well, never to another replica. A leader that was cut off from the others may answer reads for some seconds longer,
// but nothing is granted, renewed or released by a read alone.
//
// By default a NATS server syncs its files to disk every two minutes only. After a power cut of a server, or of so many
// that no majority was spared, grants of these minutes are forgotten: set sync_interval: always in the block jetstream
// of the configuration of all servers, and say so by Options.SyncAlways. A client cannot ask for that setting.
//
// A client that has lost its connection, or sees that the bucket is another one than before, reads a key again before
// it replaces it. So a holder whose grant was forgotten does not end the claim that another client has made since, but
// learns of its loss. GUARANTEES.md says what remains when a backup is restored.
//
// [driver.Info] says what the bucket promises, and the store's Examine what should be improved.
//
// # Buckets
//
// [CreateBucket] makes the bucket, and so does opening the store with create=true. [New] works on the user's own
// connection. A bucket must not remove keys by itself, so one with a TTL is refused. The settings are read again every
// half a minute: then calls fail with ErrUnsupported if the bucket has become one that is refused.
//
// # Decisions
//
// After a new connection a client reads each key again before it replaces it. A server that comes back without its last
// writes gives their revisions to others. Rejected: to compare the last revision after each reconnect, since others may
// have written as many until then. Rejected: to make the connection a part of the version: the engine takes another
// version for proof that a write which is on its way will be refused. So a version is the revision and a checksum of
// the data, and the table knows which versions it has seen on this connection. A write costs no more requests than
// before.
//
// The revisions of a bucket begin with the time. So a bucket that was made again does not repeat those of the one
// before, and the server refuses the writes of its holders. Rejected: the time of the bucket in the keys, which users
// also read with other tools.
package nats

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Options say where and how locks are kept in a bucket. The zero value and nil mean the defaults.
type Options struct {
	// Prefix begins the keys: the lock NAME is the key PREFIX.NAME. It consists of letters, digits and the characters
	// - _ / and the dot, which separates tokens. At most 128 bytes. Default: locks.
	Prefix string
	// Create makes the bucket if it does not exist: see [CreateBucket].
	Create bool
	// Replicas is how many servers keep the bucket that Create makes: 1 to 5. Use 3 in a cluster: of 2, neither may
	// fail. A bucket that exists is left as it is. Default: 1.
	Replicas int
	// SyncAlways tells the store that all servers have sync_interval: always in their configuration, which it cannot
	// ask for, and does not set. Then it promises that claims survive a power cut.
	SyncAlways bool
	// ClockSkew is how far the clocks of the servers may be apart. In a cluster, a claim that is not renewed is removed
	// so much later. Default: 1 s.
	ClockSkew time.Duration
	// Timeout is how long the servers may take to answer one request. Default: 3 s.
	Timeout time.Duration
	// Clock is the client's clock, which tests replace. Default: driver.SystemClock.
	Clock driver.Clock

	secrets []driverutil.SecretSource
}

const (
	defaultPrefix    = "locks"
	defaultTimeout   = 3 * time.Second
	defaultClockSkew = time.Second
	maxPrefix        = 128 // bytes
	maxReplicas      = 5
	// runsToken is the last token of the prefix of the run ledger. A lock's key has one token after the prefix, and a
	// run's key has two.
	runsToken = "=runs"
)

var (
	validPrefix = regexp.MustCompile(`^[-/_a-zA-Z0-9]+(\.[-/_a-zA-Z0-9]+)*$`)
	validBucket = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)
)

// New makes a store in a bucket, on the user's own connection: jetstream.New(conn) makes js of it. It does not close
// the connection. The connection should reconnect forever (nats.MaxReconnects(-1)), keep nothing to be sent later
// (nats.ReconnectBufSize(-1)), and not be blocked for a minute by a server that does not read
// (nats.FlusherTimeout(2*time.Second)).
//
// ctx bounds the first requests to the servers. New returns ErrInvalid if js is nil or an option cannot work,
// ErrUnsupported if the settings of the bucket make locks impossible or the server is too old, and ErrDenied if the
// bucket does not exist or a permission is missing.
func New(ctx context.Context, js jetstream.JetStream, bucket string, opts *Options) (driver.Store, error) {
	t, err := newTable(ctx, js, bucket, opts)
	if err != nil {
		return nil, err
	}
	return record.New(t), nil
}

// NewTable gives access to bare records, for data that is built on records but is no lock. Use another Options.Prefix
// than that of the locks.
func NewTable(ctx context.Context, js jetstream.JetStream, bucket string, opts *Options) (record.Table, error) {
	t, err := newTable(ctx, js, bucket, opts)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// OpenLedgerTable opens the records of the run ledger, in the same bucket. No lock has a key with their prefix.
func (t *table) OpenLedgerTable(ctx context.Context) (record.Table, error) {
	o := t.opts
	o.Create = false
	return newTableAt(ctx, t.js, t.bucket, o, t.opts.Prefix+"."+runsToken)
}

// withDefaults checks the options, and fills in the defaults.
func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	c.Prefix, c.Timeout = cmp.Or(c.Prefix, defaultPrefix), cmp.Or(c.Timeout, defaultTimeout)
	c.ClockSkew, c.Replicas = cmp.Or(c.ClockSkew, defaultClockSkew), cmp.Or(c.Replicas, 1)
	switch {
	case c.Timeout < 0 || c.ClockSkew < 0:
		return c, fmt.Errorf("%w: neither a timeout nor a clock skew can be negative", driver.ErrInvalid)
	case c.Replicas < 1 || c.Replicas > maxReplicas:
		return c, fmt.Errorf("%w: a bucket has 1 to %d replicas", driver.ErrInvalid, maxReplicas)
	case len(c.Prefix) > maxPrefix || !validPrefix.MatchString(c.Prefix):
		return c, fmt.Errorf("%w: a prefix is at most %d bytes, of letters, digits and - _ / in tokens that dots "+
			"separate: %q is not", driver.ErrInvalid, maxPrefix, c.Prefix)
	}
	if c.Clock.Monotonic == nil {
		c.Clock = driver.SystemClock
	}
	return c, nil
}

// CreateBucket makes the bucket, if it does not exist: in files, with one revision per key, without a limit of its size
// or its age, and with TTLs of single messages, by which the markers of removed keys go away. Its revisions begin with
// the time in microseconds, by this machine's clock. So if it is removed and made again, none comes twice, unless the
// clock is then behind. A bucket that exists is left as it is, even if [New] refuses it. Of the options it uses
// Replicas and Timeout.
func CreateBucket(ctx context.Context, js jetstream.JetStream, bucket string, opts *Options) error {
	o, err := opts.withDefaults()
	if err == nil {
		err = checkBucket(js, bucket)
	}
	if err != nil {
		return err
	}
	t := &table{js: js, bucket: bucket, opts: o, life: driverutil.NewLifetime()}
	defer t.life.End()
	return t.createBucket(ctx)
}

// checkBucket refuses what NATS would refuse later with less to say.
func checkBucket(js jetstream.JetStream, bucket string) error {
	if js == nil {
		return fmt.Errorf("%w: js is nil: pass what jetstream.New makes of a connection", driver.ErrInvalid)
	}
	if !validBucket.MatchString(bucket) {
		return fmt.Errorf("%w: the name of a bucket consists of letters, digits, _ and -: %q does not",
			driver.ErrInvalid, bucket)
	}
	return nil
}

// newTable checks the bucket, makes it if the options say so, and reads the clock of its leader.
func newTable(ctx context.Context, js jetstream.JetStream, bucket string, opts *Options) (*table, error) {
	o, err := opts.withDefaults()
	if err == nil {
		err = checkBucket(js, bucket)
	}
	if err != nil {
		return nil, err
	}
	return newTableAt(ctx, js, bucket, o, o.Prefix)
}

// newTableAt opens a table whose keys begin with keyPrefix.
func newTableAt(ctx context.Context, js jetstream.JetStream, bucket string, o Options, keyPrefix string) (*table, error) {
	t := &table{js: js, bucket: bucket, opts: o, keyPrefix: keyPrefix, session: record.NewSession(),
		life: driverutil.NewLifetime(), watches: map[watched]*keyWatch{}, seen: map[string]lastSeen{}}
	t.clock.Clock = o.Clock
	if err := t.open(ctx); err != nil {
		t.life.End()
		return nil, err
	}
	return t, nil
}

// open reads the state of the bucket, and creates the bucket if that is wanted.
func (t *table) open(ctx context.Context) error {
	stream, err := t.readState(ctx)
	if isMissingBucket(err) && t.opts.Create {
		if err = t.createBucket(ctx); err == nil {
			stream, err = t.readState(ctx)
		}
	}
	if err != nil {
		return err
	}
	// All members of a cluster are one place, whichever this client is connected to: LockAll orders locks by it.
	at := connectedHost(t.conn())
	if name := clusterName(stream.CachedInfo()); name != "" {
		at = name
	}
	t.stream, t.place = stream, "nats://"+at+"/"+t.bucket
	kv, err := callServer(ctx, t, t.apiSubject("STREAM.INFO"), func(ctx context.Context) (jetstream.KeyValue, error) {
		return t.js.KeyValue(ctx, t.bucket)
	})
	if err == nil {
		t.kv = kv
	}
	return err
}

// createBucket makes the bucket, unless it exists.
func (t *table) createBucket(ctx context.Context) error {
	_, err := callServer(ctx, t, t.apiSubject("STREAM.CREATE"), func(ctx context.Context) (struct{}, error) {
		_, err := t.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: t.streamName(), Subjects: []string{t.subject(">")}, Description: "locks of Holdfast",
			MaxMsgsPerSubject: 1, MaxMsgs: -1, MaxBytes: -1, MaxMsgSize: -1, MaxConsumers: -1,
			Discard: jetstream.DiscardNew, Storage: jetstream.FileStorage, Replicas: t.opts.Replicas,
			AllowRollup: true, DenyDelete: true, AllowMsgTTL: true,
			// Revisions begin with the time, so that those of a bucket that was removed do not come again.
			FirstSeq: uint64(time.Now().UnixMicro()),
			// AllowDirect stays off, so that reads of other programs go to the leader, too.
		})
		if isCode(err, jetstream.JSErrCodeStreamNameInUse) {
			err = nil // another client was faster
		}
		return struct{}{}, err
	})
	return err
}

// checkConfig refuses a bucket in which locks would be lost, or whose writes do not compare revisions.
func checkConfig(bucket string, c *jetstream.StreamConfig) error {
	refuse := func(what, fix string) error {
		return fmt.Errorf("%w: the bucket %s %s: %s", driver.ErrUnsupported, bucket, what, fix)
	}
	limited := c.MaxBytes > 0 || c.MaxMsgs > 0
	switch {
	case !isNewEnough(c):
		return refuse("is kept by a server older than NATS 2.11", "bring the servers up to date")
	case c.Mirror != nil || len(c.Sources) > 0:
		return refuse("copies another one", "open the original, or another bucket")
	case c.MaxAge > 0:
		return refuse(fmt.Sprintf("removes keys after %v", c.MaxAge), "set its TTL to 0, or use another bucket")
	case c.Discard == jetstream.DiscardOld && limited:
		return refuse("removes the oldest keys when it is full", "set its discard policy to new, or remove its limits")
	case c.DiscardNewPerSubject:
		return refuse("refuses to replace keys", "set its discard_new_per_subject to false, or use another bucket")
	case c.Retention != jetstream.LimitsPolicy:
		return refuse("removes what was read", "use another bucket")
	case c.MaxMsgsPerSubject < 1:
		return refuse("is not a key-value bucket", "use another bucket")
	case c.Sealed:
		return refuse("is sealed", "use another bucket")
	case c.NoAck:
		return refuse("acknowledges no writes", "use another bucket")
	case c.MaxMsgSize > 0 && c.MaxMsgSize < minMessage:
		return refuse(fmt.Sprintf("takes values of at most %d bytes", c.MaxMsgSize),
			fmt.Sprintf("set its max_value_size to %d or more", minMessage))
	case c.SubjectTransform != nil || c.AllowMsgCounter:
		return refuse("changes what is written", "use another bucket")
	}
	return nil
}

// isNewEnough reports whether the server that has sent a stream's settings is of NATS 2.11 or later. Those tell their
// API level, 1 or more. Older ones may accept two writes that expect the same revision, when another server becomes the
// leader. The server that a client is connected to may be of another version.
func isNewEnough(c *jetstream.StreamConfig) bool {
	level, err := strconv.Atoi(c.Metadata["_nats.level"])
	return err == nil && level >= 1
}

// settings are what follows from the settings of the bucket and its servers. They are read again every half a minute.
type settings struct {
	info             driver.Info // without Store
	inCluster        bool        // another server with another clock may become the bucket's leader
	canExpireMarkers bool
	maxRecord        int // bytes
}

func (t *table) knownSettings() settings {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.settings
}

// readSettings says what the settings of the bucket mean. It returns ErrUnsupported if they make locks impossible.
func (t *table) readSettings(state *jetstream.StreamInfo) (settings, error) {
	c := &state.Config
	if err := checkConfig(t.bucket, c); err != nil {
		return settings{}, err
	}
	if most := t.conn().MaxPayload(); most < minMessage {
		return settings{}, fmt.Errorf("%w: the servers take messages of at most %d bytes: set max_payload to %d or more",
			driver.ErrUnsupported, most, minMessage)
	}
	inFiles := c.Storage == jetstream.FileStorage && c.PersistMode == jetstream.DefaultPersistMode
	isSynced := inFiles && t.opts.SyncAlways
	s := settings{inCluster: clusterName(state) != "", canExpireMarkers: c.AllowMsgTTL && c.AllowRollup}
	s.info = driver.Info{
		Clock: t.opts.Clock, Tier: driver.TierFenceSafe, ExpiryClock: driver.ExpiryClockStore,
		// Of two replicas, neither may fail.
		Survives: driver.Survives{Restart: inFiles, PowerCut: isSynced, Failover: c.Replicas >= 3},
		TokenGap: time.Minute + 2*t.opts.ClockSkew,
	}
	switch {
	case isSynced:
	case inFiles:
		s.info.Tier = driver.TierSettings
		s.info.TokenRegression = "after a power cut within two minutes and a TokenGap of the last grant: " +
			"sync_interval is not known to be always"
	default:
		s.info.Tier = driver.TierAdvisory
		s.info.TokenRegression = "after a restart of the server within a TokenGap of the last grant: the bucket is not " +
			"written to files at once"
	}
	s.maxRecord = record.MaxData
	if c.MaxMsgSize > 0 {
		s.maxRecord = min(s.maxRecord, int(c.MaxMsgSize)-headerReserve)
	}
	// A reply to a read has the data in base64.
	s.maxRecord = min(s.maxRecord, int(t.conn().MaxPayload())/4*3-headerReserve)
	return s, nil
}

// clusterName is the name of the cluster that keeps a bucket; empty: a server alone does.
func clusterName(state *jetstream.StreamInfo) string {
	if state.Cluster == nil {
		return ""
	}
	return state.Cluster.Name
}

// minMessage is how large messages must be allowed to be, in bytes. A lock with several claims takes a few thousand.
const minMessage = 16 << 10

// headerReserve is what a message needs besides the data of a record, in bytes.
const headerReserve = 4 << 10

// isCode reports whether the server has refused a request with a code of JetStream's API.
func isCode(err error, codes ...jetstream.ErrorCode) bool {
	e := apiError(err)
	if e == nil {
		return false
	}
	for _, c := range codes {
		if e.ErrorCode == c {
			return true
		}
	}
	return false
}

func (t *table) streamName() string        { return "KV_" + t.bucket }
func (t *table) subject(key string) string { return "$KV." + t.bucket + "." + key }
func (t *table) key(name string) string    { return t.keyPrefix + "." + encodeName(name) }
func (t *table) conn() *nats.Conn          { return t.js.Conn() }
func (t *table) Keys(name string) []string { return []string{t.bucket + ": " + t.key(name)} }

// Traits limit the records as the bucket does.
func (t *table) Traits() record.Traits {
	return record.Traits{MaxRecord: t.knownSettings().maxRecord, ListsInOrder: true, Ledger: true}
}

// Info implements record.Table.
func (t *table) Info() driver.Info {
	i := t.knownSettings().info
	i.Store = t.place
	return i
}

// TokenFloor is the clock of the bucket's leader.
func (t *table) TokenFloor() int64 { return t.clock.TokenFloor() }

// Clock is the clock of the bucket's leader, and what another leader's may differ.
func (t *table) Clock() record.Clock { return bucketClock{t} }

// ReadClock is one read, and that of the bucket's state, which has the time.
func (t *table) ReadClock(ctx context.Context) (now time.Time, maxError time.Duration, err error) {
	return record.ReadClockByLoad(ctx, t)
}

type bucketClock struct{ *table }

// Bounds: the end of a claim may have been set by the clock of another server, which is behind this one by the skew.
func (t bucketClock) Bounds() (early, late int64, known bool) {
	early, late, known = t.clock.Bounds()
	return early - t.skew().Microseconds(), late, known
}

// IsStale: the clock is read together with the state of the bucket, which is also read again in each epoch.
func (t bucketClock) IsStale() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.clock.IsStale() || t.epoch.stateRead != t.epoch.number
}

// skew is how far another server's clock may be apart. In a cluster even a bucket without replicas can move.
func (t *table) skew() time.Duration {
	if !t.knownSettings().inCluster {
		return 0
	}
	return t.opts.ClockSkew
}

// apiSubject is what requests of the bucket's stream to JetStream are published to.
func (t *table) apiSubject(request string) string {
	return apiPrefix(t.js) + request + "." + t.streamName()
}

// writeSubject is what writes to a key are published to. In another domain the servers take the prefix away.
func (t *table) writeSubject(key string) string {
	if prefix := apiPrefix(t.js); prefix != jetstream.DefaultAPIPrefix {
		return prefix + t.subject(key)
	}
	return t.subject(key)
}

// apiPrefix begins the subjects of requests to JetStream.
func apiPrefix(js jetstream.JetStream) string {
	o := js.Options()
	switch {
	case o.Domain != "":
		return "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		return strings.TrimSuffix(o.APIPrefix, ".") + "."
	}
	return jetstream.DefaultAPIPrefix
}
