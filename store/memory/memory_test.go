package memory_test

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/internal/storetest"
	"github.com/holdfast-go/holdfast/store/memory"
)

func TestConformance(t *testing.T) {
	for name, opts := range map[string]*memory.Options{
		"judged by the store's clock": nil,
		"judged by observers":         {Unclocked: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := memory.New(opts)
			h := drivertest.Harness{Open: func(context.Context) (driver.Store, error) { return m.Open(), nil }}
			storetest.Conform(t, h, drivertest.Options{})
		})
	}
}
