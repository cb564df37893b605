package redis

import (
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestURL: each form of URL gives the right options, and the error for a wrong one contains no secret.
func TestURL(t *testing.T) {
	t.Parallel()
	for raw, check := range map[string]func(p *storeURL) bool{
		"redis://h": func(p *storeURL) bool {
			return p.client.InitAddress[0] == "h:6379" &&
				p.client.ForceSingleClient
		},
		"redis://u:s3cret@h:1/3": func(p *storeURL) bool {
			o := p.client
			return o.Username == "u" && o.Password == "s3cret" && o.SelectDB == 3
		},
		"redis://[::1]:7/": func(p *storeURL) bool { return p.client.InitAddress[0] == "[::1]:7" },
		"rediss://h?tls-name=n": func(p *storeURL) bool {
			return p.client.TLSConfig != nil &&
				p.client.TLSConfig.ServerName == "n"
		},
		"redis://h?prefix=app:":        func(p *storeURL) bool { return p.opts.Key == "app:*" },
		"redis://h?template=a:*:b":     func(p *storeURL) bool { return p.opts.Key == "a:*:b" },
		"redis://h?foreign-turn=150ms": func(p *storeURL) bool { return p.opts.ForeignTurn == 150*time.Millisecond },
		"redis://h?layout=redisson":    func(p *storeURL) bool { return p.opts.Layout == LayoutRedisson },
		"redis+sentinel://h,i/m1/2?addrs=j:9": func(p *storeURL) bool {
			return slices.Equal(p.client.InitAddress, []string{"h:26379", "i:26379", "j:9"}) &&
				p.client.Sentinel.MasterSet == "m1" && p.client.SelectDB == 2
		},
		"redis+cluster://h?replicas=2": func(p *storeURL) bool {
			return !p.client.ForceSingleClient &&
				p.opts.Replicas == 2
		},
		"redlock://h?addrs=i,j:3": func(p *storeURL) bool {
			return slices.Equal(p.client.InitAddress,
				[]string{"h:6379", "i:6379", "j:3"})
		},
	} {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		p, err := readURL(u)
		if err != nil || !check(p) {
			t.Errorf("%s: %+v %v", raw, p, err)
		} else if strings.Contains(p.opts.Place, "s3cret") {
			t.Errorf("%s: its place contains the password: %s", raw, p.opts.Place)
		}
	}
	for _, raw := range []string{
		"redis://", "redis://u:s3cret@h/x", "redis://u:s3cret@h?nope=1", "redis://h?replicas=x", "redis://h?addrs=i", "redis+sentinel://u:s3cret@h/",
		"redis+cluster://h/1", "rediss://h?tls=false", "redis://h?prefix=a*", "redis://u:s3cret@h?timeout=1", "redis://h?tls=perhaps", "redis://h?tls-ca=/does/not/exist",
		"redis://h?sentinel-password=s3cret&timeout=x", "redis://h?foreign-turn=100", "redlock://u:s3cret@h?addrs=i,h:6379",
		"redis+sentinel://u:s3cret@h//", "redlock://u:s3cret@h?addrs=i,", "redlock://u:s3cret@h?addrs=", "redlock://u:s3cret@h?addrs=i,:7",
	} {
		_, err := driver.Open(t.Context(), raw)
		if !errors.Is(err, driver.ErrInvalid) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", raw, err)
		}
	}
	for _, raw := range []string{"redis://u:s3cret@127.0.0.1:1",
		"redlock://u:s3cret@127.0.0.1:1?addrs=127.0.0.1:2,127.0.0.1:3"} {
		if _, err := driver.Open(t.Context(), raw); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", raw, err)
		}
	}
	if _, err := driver.Open(t.Context(), "redis://127.0.0.1:1?template=ab"); err == nil {
		t.Error("a template without a star")
	}
}
