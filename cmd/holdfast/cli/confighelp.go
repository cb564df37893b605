package cli

import "github.com/spf13/cobra"

// newConfigurationHelp is a topic of the help.
func newConfigurationHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "configuration",
		Short: "The store, and the defaults of locks, in configuration files",
		Long:  configurationHelp,
	}
}

const configurationHelp = `Configuration of holdfast.

The files, which need not exist:
  /etc/holdfast/config       for all users of this machine
  ~/.config/holdfast/config  for one user; $XDG_CONFIG_HOME/holdfast/config if that variable is set

    # A comment has a line of its own.
    store = redis://cache:6379
    local-default = forbid

    [lock nightly-*]
    ttl = 2m
    wait = 10m

Which value is used: the first of these that gives one: a flag, a variable of the environment, the user's file, the
machine's file, the default. Within a file, the last line that fits is used.

Keys above the first section
  store          the URL of the store, as for --store
  local-default  forbid: without a --store, a HOLDFAST_STORE and a store in a file, the command refuses to run (exit 64)
                 instead of using a directory of this machine; allow: it uses the directory
  owner          what others see as the holder, as --owner
  ttl            the --ttl of run, hold and once

Keys in a section [lock PATTERN], for run, hold, acquire and explain
  ttl, wait, store-wait, min-hold, max-hold, grace, signal: what run uses if the flag of that name is not given. A
  subcommand ignores those that it has no flag for. acquire takes its TTL from --ttl alone.
  PATTERN is the name of a lock; * in it stands for any text, and ? for one character.

An unknown key or a value that cannot be right is an error (exit 64), and so is a file that cannot be read, or that
somebody else could change: it must belong to root or to the user, not be writable by all, and for root not by its group.
A file with a password in it should be readable only by those who may know the password; for them all, use password-file
in the URL.

Variables
  HOLDFAST_STORE   the URL of the store
  HOLDFAST_CONFIG  a file that is read instead of the two; if it is empty, none is read
  HOLDFAST_BIN     the command that the packages of other languages start
Other variables that begin with HOLDFAST_ are an error (exit 64), except those that run and once set for their commands,
and those of a Kubernetes Service named holdfast.

"holdfast stores" shows which store is used, where its URL is from, and which files there are.`
