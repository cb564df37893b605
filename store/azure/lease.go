package azure

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/driverutil"
	"github.com/holdfast-go/holdfast/engine/foreign"
	"github.com/holdfast-go/holdfast/engine/record"
)

// Layout is how a lock is stored in the container.
type Layout string

const (
	// LayoutRecord is Holdfast's own layout, and the default.
	LayoutRecord Layout = "record"
	// LayoutLease is the layout of clients that lease a blob: DistributedLock.Azure, Terraform's backend azurerm,
	// WebJobs. The lock NAME is held while the blob PREFIX and NAME is leased; only names that the service does not
	// accept are escaped. Their clients and ours exclude each other. The content of the blob stays as it is, and so
	// does metadata of others. It supports the plain mutex and the election only.
	//
	// A lease has 15 s to 60 s, or no end. Ours has the TTL and at least 15 s, and no end if the TTL is longer than 60
	// s. So what one of ours leaves when it crashes can block foreign clients after the TTL: until 15 s have passed, or
	// until the next client of ours comes. The service does not say when a foreign lease ends, nor whose it is, except
	// for what Terraform and WebJobs write next to it. A foreign holder can be broken by force only, and if the lease
	// has no end, that is the only way to end it. Who breaks a lease of ours ends it at once, while its holder learns
	// of it at its next renewal.
	//
	// Our record is in the blob's metadata, which is written before the blob is leased, so a lock takes two requests,
	// and a renewal, too. If the second request gets no answer and takes effect more than 15 s later, the blob is
	// leased for nobody, until that lease ends.
	LayoutLease Layout = "lease"
)

// layouts are all of them, the default first.
var layouts = []Layout{LayoutRecord, LayoutLease}

// The metadata of a blob. Their names have no dash: the service does not accept one.
const (
	recordKey    = "holdfast"         // our record, in base64
	leaseKey     = "holdfastlease"    // the lease of the record's claim, or of its last one: its id and its seconds
	madeKey      = "holdfastmade"     // we have made the blob
	terraformKey = "terraformlockid"  // what Terraform knows of a holder: JSON in base64
	webJobsKey   = "functioninstance" // the holder of WebJobs
)

const (
	maxLeaseMeta = 256     // bytes of a claim's metadata: all metadata of a blob have 8 KiB
	maxInRecord  = 5 << 10 // bytes of a record, which has a third more in base64
	minLease     = 15      // seconds
	maxLease     = 60      // seconds
	noEnd        = -1      // the seconds of a lease that does not end
)

// leaseTable is a container as a record.Table for LayoutLease.
//
// A claim counts while the blob has the lease that the metadata name. A read asks for that: the service answers with
// the properties of a blob only if the id is that of its lease. So a record whose lease was broken, has ended or was
// never taken has no claim, and a lease of anybody else is a foreign claim.
//
// Each step writes the record first, on the condition that the ETag is the one that was seen, and then takes or renews
// the lease on the condition of the new ETag. A lease changes no ETag. So of our own clients only the one whose record
// is there can take the lease, and of all clients one.
type leaseTable struct {
	*table
	writes *foreign.Writes
}

// maxLateness is changed by tests.
var maxLateness = foreign.MaxLateness

// newLeaseStore makes the store for LayoutLease.
func newLeaseStore(t *table) driver.Store {
	l := &leaseTable{table: t}
	l.writes = foreign.NewWrites(t.life, t.clock.Clock, maxLateness, l.releaseLate)
	return foreign.New(l, string(LayoutLease))
}

// Info limits the metadata of claims, which must fit into the blob's.
func (t *leaseTable) Info() driver.Info {
	i := t.table.Info()
	i.MaxMeta = maxLeaseMeta
	i.TokenRegression = "when somebody removes a blob within 6 s of its last grant, or the account fails over to another region"
	return i
}

// Traits: a foreign client leaves no note when it ends a claim of ours.
func (t *leaseTable) Traits() record.Traits {
	return record.Traits{Traceless: true, MaxRecord: maxInRecord}
}

// Keys names the blob of a lock by its address, for people.
func (t *leaseTable) Keys(name string) []string {
	at, _ := t.blobOf(name)
	return []string{t.url(request{blob: at})}
}

// oddMark begins, after the prefix, the names of the blobs of odd names.
const oddMark = "="

// blobOf is the name of the blob of a lock: the same name, so that it is a foreign client's, too. A name that the
// service would refuse or change cannot be a foreign client's, and is escaped.
func (t *leaseTable) blobOf(name string) (string, error) {
	if strings.HasPrefix(name, oddMark) {
		return "", fmt.Errorf("%w: in the layout %s a lock's name must not begin with an equals sign", driver.ErrInvalid,
			LayoutLease)
	}
	at := t.prefix + name
	if !isPath(at) {
		at = t.prefix + oddMark + encodeName(name)
	}
	return at, checkBlobName(at)
}

// nameOf is the name of the lock of a blob, or false.
func (t *leaseTable) nameOf(at string) (name string, ok bool) {
	own := strings.TrimPrefix(at, t.prefix)
	if name = own; strings.HasPrefix(own, oddMark) {
		name, _ = decodeName(own[len(oddMark):])
	}
	made, err := t.blobOf(name)
	return name, name != "" && err == nil && made == at
}

// isPath reports whether the service leaves a name as it is.
func isPath(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || encodeName(part) != strings.ReplaceAll(part, "=", "==") {
			return false
		}
	}
	return true
}

// leaseVersion is the content of Row.Version.
type leaseVersion struct {
	ETag     string            `json:"etag"`
	Lease    string            `json:"lease,omitempty"`   // the blob has this lease of ours
	Seconds  int               `json:"seconds,omitempty"` // of that lease
	Ends     int64             `json:"ends,omitempty"`    // when the record says that its claim expires
	Foreign  bool              `json:"foreign,omitempty"` // the blob has a lease that is not ours
	Metadata map[string]string `json:"meta,omitempty"`    // all that is to be kept
}

func (v leaseVersion) String() string {
	text, _ := json.Marshal(v) // keys are sorted, so equal versions have equal texts
	return string(text)
}

func parseLeaseVersion(text string) (v leaseVersion, err error) {
	if text == "" {
		return v, nil
	}
	if err := json.Unmarshal([]byte(text), &v); err != nil || v.ETag == "" {
		return v, fmt.Errorf("%w: the version %q", driver.ErrInvalid, text)
	}
	return v, nil
}

// Load is one or two reads of the blob's properties.
func (t *leaseTable) Load(ctx context.Context, name string) (record.Row, error) {
	row := record.Row{Name: name}
	at, err := t.blobOf(name)
	if err != nil {
		return row, err
	}
	if err := errors.Join(t.writes.Await(ctx, name), t.refreshClock(ctx)); err != nil {
		return row, err
	}
	for {
		b, err := t.head(ctx, at, "")
		if errors.Is(err, errNotFound) {
			return row, nil
		}
		if err != nil {
			return row, err
		}
		row, err = t.readRow(ctx, name, at, b)
		if !errors.Is(err, record.ErrConflict) { // it has changed between two requests
			return row, err
		}
	}
}

// readRow makes the row of a blob. It is a conflict if the blob changes meanwhile.
func (t *leaseTable) readRow(ctx context.Context, name, at string, b blob) (record.Row, error) {
	row, v := record.Row{Name: name}, leaseVersion{ETag: b.etag, Metadata: keptMetadata(b.metadata)}
	rec := &record.Record{}
	text, known := b.metadata[recordKey]
	if !known && !b.leased {
		return row, nil
	}
	if known {
		data, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return row, fmt.Errorf("%w: the metadata %s of the blob %s are not Holdfast's", driver.ErrCorrupt, recordKey, at)
		}
		if rec, err = record.Decode(name, data); err != nil {
			return row, err
		}
	}
	lease, seconds, _ := strings.Cut(b.metadata[leaseKey], " ")
	isOurs := false
	if b.leased && !b.breaking && lease != "" { // a lease that is being broken is lost
		again, err := t.head(ctx, at, lease)
		switch {
		case err == nil && again.etag != b.etag, errors.Is(err, errNotFound):
			return row, record.ErrConflict
		case err == nil:
			isOurs = true
		case leaseCode(err) == "":
			return row, err
		}
	}
	switch {
	case isOurs:
		v.Lease = lease
		v.Seconds, _ = strconv.Atoi(seconds)
		t.writes.Saw(name, lease)
		if len(rec.Claims) > 0 {
			v.Ends = rec.Claims[0].ExpiresAt
		}
	case b.leased:
		v.Foreign = true
		setClaims(rec, foreignClaim(b, max(rec.Token, 1)))
	default:
		if len(rec.Claims) > 0 {
			rec.Idle = rec.Claims[0].ExpiresAt
		}
		setClaims(rec)
	}
	data, err := record.Encode(rec)
	row.Data, row.Version = data, v.String()
	return row, err
}

// setClaims replaces the claims of a record.
func setClaims(rec *record.Record, claims ...record.Claim) {
	rec.Claims, rec.Kind, rec.Limit = claims, "", 0
	for _, c := range claims {
		rec.Kind, rec.Limit, rec.Token, rec.Idle = driver.KindMutex, 1, max(rec.Token, c.Token), 0
	}
}

// keptMetadata are the metadata of a blob that are not about a holder.
func keptMetadata(all map[string]string) map[string]string {
	kept := maps.Clone(all)
	for _, key := range []string{recordKey, leaseKey, terraformKey} {
		delete(kept, key)
	}
	return kept
}

// terraformHolder is what Terraform writes of a holder. It ignores the fields that it does not know.
type terraformHolder struct {
	ID        string
	Operation string
	Info      string
	Who       string
	Version   string
	Created   time.Time
	Path      string
}

// ownVersion is the version of Terraform in what we write for it.
const ownVersion = "holdfast"

// foreignClaim stands for the lease of a foreign client. The service does not say when it ends.
func foreignClaim(b blob, token int64) record.Claim {
	var h terraformHolder
	text, err := base64.StdEncoding.DecodeString(b.metadata[terraformKey])
	if err != nil || json.Unmarshal(text, &h) != nil || h.Version == ownVersion {
		h = terraformHolder{} // a client of ours was about to take the lease, and another has it
	}
	owner := cmp.Or(strings.Join(strings.Fields(h.Who+" "+h.Operation), " "), b.metadata[webJobsKey], "a foreign client")
	return record.Claim{ID: foreign.IDPrefix + cmp.Or(h.ID, strings.Trim(b.etag, `"`)), Weight: 1, TTL: foreign.NoEndTTL,
		SilenceLimit: foreign.NoEndTTL, State: record.Granted, Token: token,
		Owner: strings.ToValidUTF8(owner[:min(len(owner), driver.MaxOwner)], "")}
}

// leaseCode is the code of a refusal that is about a lease; else it is empty.
func leaseCode(err error) string {
	var refused *refusal
	if errors.As(err, &refused) && leaseCodes[refused.code] {
		return refused.code
	}
	return ""
}

// conflictOf makes a conflict of the refusals that mean that the blob, or its lease, is not as it was seen.
func conflictOf(err error) error {
	if leaseCode(err) != "" || errors.Is(err, errNotFound) {
		return record.ErrConflict
	}
	return err
}

// lease sends a request about the lease of a blob that has this ETag; an empty one is any.
func (t *leaseTable) lease(ctx context.Context, at, action, etag string, more http.Header) error {
	r := request{method: http.MethodPut, blob: at, query: url.Values{"comp": {"lease"}}, header: http.Header{},
		needs: "to write blobs"}
	maps.Copy(r.header, more)
	r.header.Set("X-Ms-Lease-Action", action)
	setIf(r.header, "If-Match", etag)
	_, err := t.callServer(ctx, r)
	return conflictOf(err)
}

// acquireLease takes a lease, or changes how many seconds a lease has that is there.
func (t *leaseTable) acquireLease(ctx context.Context, at, etag, id string, seconds int) error {
	return t.lease(ctx, at, "acquire", etag, http.Header{"X-Ms-Proposed-Lease-Id": {id},
		"X-Ms-Lease-Duration": {strconv.Itoa(seconds)}})
}

// breakLease ends any lease of a blob at once.
func (t *leaseTable) breakLease(ctx context.Context, at, etag string) error {
	return t.lease(ctx, at, "break", etag, http.Header{"X-Ms-Lease-Break-Period": {"0"}})
}

// holdLease renews or releases a lease.
func (t *leaseTable) holdLease(ctx context.Context, at, action, id string) error {
	return t.lease(ctx, at, action, "", http.Header{leaseIDHeader: {id}})
}

// writeMetadata replaces the metadata of a blob that is as v says, and returns its new ETag.
func (t *leaseTable) writeMetadata(ctx context.Context, at string, v leaseVersion, metadata map[string]string) (string, error) {
	r := request{method: http.MethodPut, blob: at, query: url.Values{"comp": {"metadata"}}, header: ifUnchanged(v.ETag),
		needs: "to write blobs"}
	setIf(r.header, leaseIDHeader, v.Lease)
	for key, value := range metadata {
		r.header.Set(metaPrefix+key, value)
	}
	etag, err := etagOf(t.callServer(ctx, r))
	return etag, conflictOf(err)
}

// leaseID is the id of the lease of a claim. A request that is sent again has the same one.
func leaseID(name, claim string) string {
	sum := sha256.Sum256([]byte(name + "\x00" + claim))
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80 // a GUID of version 8
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// leaseSeconds is how many seconds the lease of a claim has.
func leaseSeconds(ttl time.Duration) int {
	seconds := int((ttl + time.Second - 1) / time.Second)
	if seconds > maxLease {
		return noEnd
	}
	return max(seconds, minLease)
}

// Swap writes the record, and then takes, renews or releases the lease.
func (t *leaseTable) Swap(ctx context.Context, row record.Row) (record.Row, error) {
	at, err := t.blobOf(row.Name)
	if err != nil {
		return record.Row{}, err
	}
	v, err := parseLeaseVersion(row.Version)
	if err != nil {
		return record.Row{}, err
	}
	rec, err := record.Decode(row.Name, row.Data)
	switch {
	case err != nil:
		return record.Row{}, err
	case len(rec.Claims) == 0:
		return t.free(ctx, row, at, v)
	case strings.HasPrefix(rec.Claims[0].ID, foreign.IDPrefix):
		return record.Row{}, fmt.Errorf("%w: a foreign holder cannot be notified; break it by force", driver.ErrUnsupported)
	}
	c := &rec.Claims[0]
	next := leaseVersion{Lease: leaseID(row.Name, c.ID), Seconds: leaseSeconds(c.TTL), Ends: c.ExpiresAt, Metadata: v.Metadata}
	if c.SilenceLimit > c.TTL {
		next.Seconds = leaseSeconds(c.SilenceLimit)
	}
	mark := next.Lease
	if v.Lease == next.Lease {
		mark = "" // it has the lease
	}
	now, err := foreign.Do(ctx, t.writes, row.Name, mark, func(ctx context.Context) (record.Row, error) {
		now := row
		next, err := t.hold(ctx, row, at, v, next, c)
		now.Version = next.String()
		return now, err
	})
	if err != nil {
		return record.Row{}, err
	}
	return now, nil
}

// hold writes the record of a claim, and takes or renews its lease.
func (t *leaseTable) hold(ctx context.Context, row record.Row, at string, v, next leaseVersion, c *record.Claim,
) (leaseVersion, error) {
	holder, err := json.Marshal(terraformHolder{ID: next.Lease, Operation: "holdfast", Info: c.Meta, Who: c.Owner,
		Version: ownVersion, Created: time.UnixMicro(cmp.Or(c.Since, t.TokenFloor())).UTC(), Path: t.container + "/" + at})
	if err != nil {
		return next, err
	}
	set := map[string]string{leaseKey: fmt.Sprint(next.Lease, " ", next.Seconds),
		terraformKey: base64.StdEncoding.EncodeToString(holder)}
	renews := v.Lease == next.Lease
	if next.ETag, next.Metadata, err = t.writeRecord(ctx, row, at, v, renews, set); err != nil {
		return next, err
	}
	switch {
	case !renews:
		err = t.acquireLease(ctx, at, next.ETag, next.Lease, next.Seconds)
	case v.Ends != next.Ends || v.Seconds != next.Seconds: // else somebody else has written, who does not renew it
		err = t.holdLease(ctx, at, "renew", next.Lease)
		if err == nil && v.Seconds != next.Seconds {
			err = t.acquireLease(ctx, at, next.ETag, next.Lease, next.Seconds)
		}
	}
	return next, err
}

// writeRecord writes the record of a row into the metadata, which set is added to, and returns the new ETag and what
// else is kept there. A lease is ended first, unless it is kept.
func (t *leaseTable) writeRecord(ctx context.Context, row record.Row, at string, v leaseVersion, keepLease bool,
	set map[string]string) (etag string, kept map[string]string, err error) {
	set[recordKey] = base64.StdEncoding.EncodeToString(row.Data)
	if v.ETag == "" {
		b, err := t.head(ctx, at, "")
		switch {
		case errors.Is(err, errNotFound):
			kept = map[string]string{madeKey: "true"}
			maps.Copy(set, kept)
			etag, err = t.put(ctx, at, "", nil, set)
			return etag, kept, conflictOf(err)
		case err != nil:
			return "", nil, err
		case b.leased || b.metadata[recordKey] != "":
			return "", nil, record.ErrConflict
		}
		v = leaseVersion{ETag: b.etag, Metadata: keptMetadata(b.metadata)}
	}
	if v.Foreign || v.Lease != "" && !keepLease {
		if err := t.breakLease(ctx, at, v.ETag); err != nil {
			return "", nil, err
		}
		v.Lease = ""
	}
	maps.Copy(set, v.Metadata)
	etag, err = t.writeMetadata(ctx, at, v, set)
	return etag, v.Metadata, err
}

// released is the ETag of a blob whose lease was released, and whose ETag is not known. No blob has it.
const released = `"released"`

// free ends the lease, and then writes a record without a claim. When the lease has ended the lock is free, whatever
// becomes of the record: a claim without a lease does not count.
func (t *leaseTable) free(ctx context.Context, row record.Row, at string, v leaseVersion) (record.Row, error) {
	held := v.Lease != ""
	if held {
		if err := t.endLease(ctx, at, v.Lease); err != nil {
			return record.Row{}, err
		}
		v.Lease = ""
	}
	etag, kept, err := t.writeRecord(ctx, row, at, v, false, map[string]string{})
	switch {
	case err == nil:
		row.Version = leaseVersion{ETag: etag, Metadata: kept}.String()
	case held:
		row.Version = leaseVersion{ETag: released}.String()
	default:
		return record.Row{}, err
	}
	return row, nil
}

// endLease releases a lease. If a reply is lost, it asks again: a release that is not there any more was done then.
func (t *leaseTable) endLease(ctx context.Context, at, id string) (err error) {
	const maxTries = 3
	for tries := range maxTries {
		err = t.holdLease(ctx, at, "release", id)
		switch {
		case errors.Is(err, record.ErrConflict) && tries > 0:
			return nil
		case err == nil || driverutil.IsFinal(err) || errors.Is(err, record.ErrConflict) || ctx.Err() != nil:
			return err
		}
	}
	return err
}

// releaseLate releases a lease that may have been taken late, of a claim that was given up.
func (t *leaseTable) releaseLate(ctx context.Context, name, lease string) {
	if at, err := t.blobOf(name); err == nil {
		_ = t.holdLease(ctx, at, "release", lease)
	}
}

// Delete removes the blob, if we have made it, and else our metadata.
func (t *leaseTable) Delete(ctx context.Context, row record.Row) error {
	at, err := t.blobOf(row.Name)
	if err != nil || row.Version == "" {
		return err
	}
	v, err := parseLeaseVersion(row.Version)
	switch {
	case err != nil:
		return err
	case v.Foreign:
		return record.ErrConflict
	case v.Lease != "":
		if err := t.breakLease(ctx, at, v.ETag); err != nil {
			return err
		}
		v.Lease = ""
	}
	if v.Metadata[madeKey] != "" {
		err = conflictOf(t.remove(ctx, at, v.ETag))
	} else {
		_, err = t.writeMetadata(ctx, at, v, v.Metadata)
	}
	if errors.Is(err, record.ErrConflict) { // an earlier attempt, whose reply was lost, may have done it
		if now, loadErr := t.Load(ctx, row.Name); loadErr == nil && now.Version == "" {
			return nil
		}
	}
	return err
}

// List returns for each blob that is leased, or has our record, what Load returns.
func (t *leaseTable) List(ctx context.Context, prefix, _ string) iter.Seq2[record.Row, error] {
	begins := []string{t.prefix}
	if prefix != "" {
		begins = []string{t.prefix + oddMark + listPrefix(prefix)}
		if plain := strings.ReplaceAll(prefix, "/", "") + "x"; isPath(plain) { // else all names that begin so are odd
			begins = append(begins, t.prefix+prefix)
		}
	}
	return func(yield func(record.Row, error) bool) {
		for _, begin := range begins {
			for row, err := range t.listRows(ctx, begin, "", "metadata", func(b listed) (string, bool) {
				name, ok := t.nameOf(b.Name.String())
				return name, ok && strings.HasPrefix(name, prefix) &&
					(b.Record != "" || b.LeaseState == "leased" || b.LeaseState == "breaking")
			}, t.Load) {
				if !yield(row, err) {
					return
				}
			}
		}
	}
}

// Close waits for the writes that are running, so that none takes effect after it.
func (t *leaseTable) Close() error {
	if t.life.End() {
		t.life.Wait()
		return t.closeClient()
	}
	return nil
}
