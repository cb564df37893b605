package redis

import (
	"context"
	"errors"
	"net/url"
	"sync"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
)

// openRedlockURL opens a redlock:// URL.
func openRedlockURL(ctx context.Context, u *url.URL) (driver.Store, error) {
	p, err := readURL(u)
	if err != nil {
		return nil, err
	}
	p.useDialer(ctx)
	return openRedlock(ctx, p)
}

// openRedlock makes a store with clients of its own. A minority of the servers may be away. Each server gets a client
// of its own: one client for all addresses would take them for one group.
func openRedlock(ctx context.Context, p *storeURL) (driver.Store, error) {
	clients := make([]rueidis.Client, len(p.client.InitAddress))
	errs := make([]error, len(clients))
	closeAll := func() {
		for _, c := range clients {
			if c != nil {
				c.Close()
			}
		}
	}
	// Only the servers that are not connected yet are tried again.
	err := retryConnect(ctx, func() error {
		var wg sync.WaitGroup
		for i, addr := range p.client.InitAddress {
			if clients[i] == nil {
				o := p.client
				o.InitAddress = []string{addr}
				wg.Go(func() { clients[i], errs[i] = connectClient(ctx, o) })
			}
		}
		wg.Wait()
		return replaceUnreachable(clients, errs, p)
	})
	if err != nil {
		closeAll()
		return nil, err
	}
	r, err := newRedlock(clients, &p.opts)
	if err != nil {
		closeAll()
		return nil, err
	}
	for _, s := range r.servers {
		s.owned, s.admission.Sources = true, p.password.Sources()
	}
	return r, nil
}

// replaceUnreachable gives each server that is away a lazyClient, which connects later, if those servers are a
// minority. A server that replies and refuses is not away: the user should learn of a wrong password at once.
func replaceUnreachable(clients []rueidis.Client, errs []error, p *storeURL) error {
	var reachable rueidis.Client
	away := 0
	for i, c := range clients {
		switch {
		case c != nil:
			reachable = c
		case errors.Is(errs[i], driver.ErrDenied), errors.Is(errs[i], driver.ErrUnsupported):
			return errs[i]
		default:
			away++
		}
	}
	if away > (len(clients)-1)/2 {
		return errors.Join(errs...)
	}
	for i, c := range clients {
		if c == nil {
			o := p.client
			o.InitAddress = []string{p.client.InitAddress[i]}
			clients[i] = &lazyClient{Client: reachable, options: o}
		}
	}
	return nil
}
