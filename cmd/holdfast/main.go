package main

import (
	"github.com/holdfast-go/holdfast/cmd/holdfast/cli"
	_ "github.com/holdfast-go/holdfast/cmd/holdfast/stores" // the stores that the command can open
)

func main() { cli.Main() }
