package zk

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// errHungUp says that a server was reached, and closed the connection instead of taking the session. Servers never
// say why.
var errHungUp = errors.New("the server closed the connection: it has no leader, this host has reached " +
	"maxClientCnxns, or the server lost data")

// shortTTLError says that a server grants a session less time than was asked for.
type shortTTLError struct{ wanted, granted time.Duration }

func (e *shortTTLError) Error() string {
	return fmt.Sprintf("%v: a TTL of %v was asked for, and the ZooKeeper servers grant %v; "+
		"ask for less, or raise maxSessionTimeout there", driver.ErrInvalid, e.wanted, e.granted)
}

func (e *shortTTLError) Unwrap() error { return driver.ErrInvalid }

// identity is what a session is opened with: its id, the secret that proves it, and its TTL.
type identity struct {
	id     int64
	secret []byte
	ttl    time.Duration
}

// connect opens a link and has the server open a session, or take up the one that exists.
//
// A server that takes up a session grants it a TTL again, by its own current settings, and from then on the
// ensemble counts by that TTL, whether the answer arrives or not. So a server is first asked for a new session,
// which is not used: if that gets a shorter TTL, our session is never shown to that server.
func (c *Conn) connect(s server, round int) (*link, error) {
	c.mu.Lock()
	ours := identity{c.id, c.secret, c.granted}
	c.mu.Unlock()
	// A session that holds locks must find a living server well within its TTL, so a dead one may not cost much of
	// it. Where all servers are slow, each round gives them more time.
	timeout := max(500*time.Millisecond, min(c.asked/6, 2*time.Second)) << min(round, 2)
	if ours.id == 0 { // nothing is held yet that a short timeout could save
		ours.ttl, timeout = c.asked, max(timeout, 1500*time.Millisecond)
	}
	if ours.id != 0 && !c.autoPing {
		l, _, err := c.openLink(s, timeout, identity{ttl: ours.ttl})
		if err != nil {
			return nil, err
		}
		l.closeSession()
	}
	l, got, err := c.openLink(s, timeout, ours)
	var short *shortTTLError
	if errors.As(err, &short) && ours.id != 0 { // the server's settings changed in between
		return nil, ErrSessionExpired
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.id, c.secret, c.granted = got.id, got.secret, got.ttl
	if ours.id != 0 && !c.autoPing { // another server may take back what this one grants beyond that
		c.granted = ours.ttl
	}
	c.mu.Unlock()
	return l, nil
}

// openLink opens a link and asks the server for a session: for a new one, if the id is 0. A session that is given
// less time than wanted is ended at once.
func (c *Conn) openLink(s server, timeout time.Duration, want identity) (_ *link, got identity, err error) {
	defer func() {
		if err != nil {
			c.ensemble.noteServerError(s.name, err)
		}
	}()
	ctx, cancel := context.WithTimeout(c.life, timeout)
	defer cancel()
	nc, err := c.ensemble.dialServer(ctx, s)
	var distrust *tls.CertificateVerificationError
	if errors.As(err, &distrust) {
		err = c.ensemble.admission.CertificateRefused(fmt.Errorf("the certificate of ZooKeeper server %s: %w", s.name, err))
	}
	if err != nil {
		return nil, got, err
	}
	// Closing the connection is what ends a read or a write that waits, when the session ends: the link has no other
	// deadline, since a session may be idle for as long as its owner wants.
	l := &link{nc: nc, unhook: context.AfterFunc(c.life, func() { nc.Close() }), hasWrite: make(chan struct{}, 1)}
	_ = nc.SetDeadline(time.Now().Add(timeout))
	got, err = c.requestSession(nc, want)
	if err != nil {
		l.breakOff()
		return nil, got, err
	}
	if got.ttl < want.ttl && !c.autoPing {
		if want.id != 0 { // its holders learn of it before anybody else can have their locks
			l.unhook()
			c.end(ErrSessionExpired)
			l.awaitSessionEnd()
			l.breakOff()
		} else {
			l.closeSession()
		}
		return nil, got, &shortTTLError{want.ttl, got.ttl}
	}
	c.ensemble.admission.CredentialsAccepted()
	_ = nc.SetDeadline(time.Time{})
	l.lastHeard = time.Now()
	return l, got, nil
}

// requestSession sends the first request of a link, and decodes its answer.
//
// It contains the last transaction that the session has seen. A server that knows less than that hangs up, so that the
// session never goes back in time. The answer to a session that the servers have ended has an id and a TTL of zero.
func (c *Conn) requestSession(nc net.Conn, want identity) (got identity, err error) {
	if want.secret == nil {
		want.secret = make([]byte, 16)
	}
	c.mu.Lock()
	seen := c.lastSeen
	c.mu.Unlock()
	var body encoder
	body.putInt(0) // the version of the protocol
	body.putLong(seen)
	body.putInt(int32(want.ttl / time.Millisecond))
	body.putLong(want.id)
	body.putBytes(want.secret)
	body.putBool(false) // not a read-only server: one without a leader is of no use
	if _, err := nc.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)); err != nil {
		return got, err
	}
	frame, err := readFrame(nc)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w: %v", errHungUp, err)
	}
	if err != nil {
		return got, err
	}
	d := decoder{b: frame}
	d.readInt()
	got.ttl, got.id = time.Duration(d.readInt())*time.Millisecond, d.readLong()
	got.secret = append([]byte(nil), d.readBytes()...)
	switch {
	case d.err != nil:
		return got, d.err
	case got.ttl <= 0 || got.id == 0:
		return got, ErrSessionExpired
	}
	return got, nil
}
