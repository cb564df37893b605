package memory_test

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
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
			for _, r := range drivertest.Run(t.Context(), h, &drivertest.Options{Log: func(s string) { t.Log(s) }}) {
				switch {
				case r.Err != nil:
					t.Errorf("%s: %v\npromised: %s", r.Case.Name, r.Err, r.Case.Promise)
				case r.Skipped != "":
					t.Logf("%s: skipped: %s", r.Case.Name, r.Skipped)
				}
			}
		})
	}
}
