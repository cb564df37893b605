// Command elector takes part in a leader election of client-go, for tests: usage elector SERVER CAFILE TOKEN NAMESPACE
// LEASE IDENTITY SECONDS ROUNDS DIRECTORY. It leads ROUNDS times, and releases the lease each time; with 0 rounds it
// leads until it is killed. While it leads it has made the directory, which must not exist then, and it prints
// leading, or overlap if the directory existed.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "elector:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 9 {
		return fmt.Errorf("%d arguments", len(args))
	}
	seconds, err := strconv.Atoi(args[6])
	if err != nil {
		return err
	}
	rounds, err := strconv.Atoi(args[7])
	if err != nil {
		return err
	}
	cfg := &rest.Config{Host: args[0], BearerToken: args[2], TLSClientConfig: rest.TLSClientConfig{CAFile: args[1]}}
	client, err := coordinationv1.NewForConfig(cfg)
	if err != nil {
		return err
	}
	for n := 0; rounds == 0 || n < rounds; n++ {
		lease := time.Duration(seconds) * time.Second
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: args[3], Name: args[4]}, Client: client,
				LockConfig: resourcelock.ResourceLockConfig{Identity: args[5]}},
			LeaseDuration: lease, RenewDeadline: lease * 2 / 3, RetryPeriod: 100 * time.Millisecond, ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					defer close(done)
					defer cancel()
					if err := os.Mkdir(args[8], 0o700); err != nil {
						fmt.Println("overlap")
						return
					}
					fmt.Println("leading")
					if rounds == 0 {
						<-ctx.Done()
					} else {
						time.Sleep(20 * time.Millisecond)
					}
					if err := os.Remove(args[8]); err != nil {
						fmt.Println("overlap")
					}
				},
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			return err
		}
		// The work ends before the elector releases the lease: the context of the elector ends after it.
		elector.Run(ctx)
		<-done
		time.Sleep(30 * time.Millisecond)
	}
	fmt.Println("done")
	return nil
}
