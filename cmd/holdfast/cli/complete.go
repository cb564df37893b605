package cli

import (
	"context"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/guard"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/system"
	"github.com/holdfast-go/holdfast/driver"
)

// A completion must not make a shell wait: after completionTimeout there is none. Nobody reads more names than
// maxCompletions.
const (
	completionTimeout = 2 * time.Second
	maxCompletions    = 200
)

// addCompletions adds what a shell can complete beyond the names of flags and subcommands.
func addCompletions(root *cobra.Command, storeURL *string) {
	names := func(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completeLockNames(*storeURL, prefix), cobra.ShellCompDirectiveNoFileComp
	}
	for _, c := range root.Commands() {
		switch c.Name() {
		case "list", "show", "watch", "break", "request-release", "hold", "acquire", "explain":
			c.ValidArgsFunction = names
		case "run": // the arguments after NAME are a command, and files
			c.ValidArgsFunction = func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
				if len(args) > 0 {
					return nil, cobra.ShellCompDirectiveDefault
				}
				return names(c, args, prefix)
			}
		case "stores", "doctor", "version", "renew", "release":
			c.ValidArgsFunction = cobra.NoFileCompletions
		}
		completeFlag(c, "signal", func(string) []string { return signalNames() })
		completeFlag(c, "on-request", func(string) []string { return []string{"ignore", "release"} })
		completeFlag(c, "sort", func(string) []string { return lockOrderNames })
	}
	_ = root.RegisterFlagCompletionFunc("store",
		func(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return completeStoreURL(prefix), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		})
}

// completeFlag adds the values of a flag, if the subcommand has it.
func completeFlag(c *cobra.Command, flag string, values func(prefix string) []string) {
	if c.Flags().Lookup(flag) == nil {
		return
	}
	_ = c.RegisterFlagCompletionFunc(flag,
		func(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return values(prefix), cobra.ShellCompDirectiveNoFileComp
		})
}

// completeLockNames are the names of locks that are held or waited for. It prints no error: a shell would show it in
// the middle of the command line. A name that a shell cannot complete in one line is left out.
func completeLockNames(store, prefix string) (names []string) {
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	found := make(chan []string, 1)
	go func() {
		defer close(found)
		client, err := openClient(ctx, store, nil)
		if err != nil {
			return
		}
		var all []string
		for lock, err := range client.List(ctx, prefix) {
			if err == nil && !strings.ContainsFunc(lock.Name, func(r rune) bool { return !unicode.IsPrint(r) }) {
				all = append(all, lock.Name)
			}
			if len(all) == maxCompletions || err != nil && lock.Name == "" {
				break
			}
		}
		slices.Sort(all)
		found <- all
		closeClient(client)
	}()
	select {
	case names = <-found:
	case <-ctx.Done():
	}
	return names
}

// signalNames are the signals that --signal accepts.
func signalNames() (names []string) {
	for n := syscall.Signal(1); n <= guard.LastSignal; n++ {
		name := strings.TrimPrefix(system.SignalName(n), "SIG")
		if _, err := parseSignal(name); name != "" && err == nil {
			names = append(names, name)
		}
	}
	return names
}

// completeStoreURL completes the scheme of a URL, and after a question mark the names of its options.
func completeStoreURL(prefix string) (urls []string) {
	place, query, ok := strings.Cut(prefix, "?")
	if !ok {
		for _, scheme := range driver.Schemes() {
			root := ""
			if scheme == "file" {
				root = "/"
			}
			urls = append(urls, scheme+"://"+root)
		}
		return urls
	}
	before := place + "?"
	if i := strings.LastIndexByte(query, '&'); i >= 0 {
		before += query[:i+1]
	}
	scheme, _, _ := strings.Cut(place, "://")
	form, _ := driver.DescribeURL(scheme)
	for _, option := range form.Options {
		urls = append(urls, before+option.Name+"=")
	}
	return urls
}
