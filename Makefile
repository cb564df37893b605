# Everything here sets up what it needs on a Debian machine with Go: see scripts/setup.

# So that a test that fails behind a pipe fails.
SHELL       := /bin/bash
.SHELLFLAGS := -eo pipefail -c

# grpcnotrace: gRPC, which etcd needs, has pages for a browser that nobody sees here. With them the linker must keep every
# method that a page could name, and the command would be 59 MB instead of 37 MB. disable_grpc_modules is for the tests
# of Cloud Storage: it leaves a second protocol out of Google's library.
export GOFLAGS := -tags=grpcnotrace,disable_grpc_modules

# CORE needs no server; SERVERS are the stores on servers, and what is tested with foreign clients of theirs.
CORE    = ./cmd/holdfast/cli ./cmd/holdfast/internal . ./otel ./prometheus $(addprefix ./test/,bench docs election lockall storm)
SERVERS = $(filter-out $(addprefix $(CURDIR)/,cmd/holdfast otel prometheus test) $(CURDIR),$(shell go list -m -f '{{.Dir}}')) \
	./cmd/holdfast/stores $(addprefix ./test/,clients dynamodb fence ledger ops redis scale)
MODULES = $(CORE)
EXAMPLES = event-worker nightly stock transfer webhook
SEEDS  ?= 200
KINDS  ?= 70

.PHONY: run $(EXAMPLES) test core servers suites worlds check bench mutants evidence prove dist dist-test build setup install-servers

build:
	@scripts/setup build
	CGO_ENABLED=0 go build -ldflags='-s -w' -o bin/holdfast ./cmd/holdfast

# The main job on the embedded store: one command under a lock, no server anywhere.
run: build
	./bin/holdfast run --ttl 10s hello -- sh -c 'echo "holding $$HOLDFAST_LOCK under token $$HOLDFAST_TOKEN"'
	./bin/holdfast list

# The examples, with the servers that they need: see examples/README.md.
$(EXAMPLES): install-servers
	go run ./examples/$@

# All tests, with the real servers, which scripts/setup installs.
test: install-servers
	$(MAKE) core MODULES="$(firstword $(CORE)) $(SERVERS) $(wordlist 2,99,$(CORE))"

# All that needs no server. The many worlds of the simulation come after the suites, which measure time.
core: setup
	$(MAKE) suites
	$(MAKE) worlds
	scripts/readme

# The stores on servers alone.
servers: install-servers
	$(MAKE) suites MODULES="$(SERVERS)"

# Everything is compiled first, because tests measure time. Most of them wait for time to pass, so more of them run at once
# than there are processors; the packages that take longest begin first. make check vets.
suites:
	go list -race -test -deps -export $(addsuffix /...,$(MODULES)) >/dev/null
	go test -race -shuffle=on -vet=off -timeout 15m -p $$(($$(nproc) + 1)) -parallel $$((2 * $$(nproc))) $(addsuffix /...,$(MODULES)) -skip 'TestWorlds|TestTreeWorlds|TestKindWorlds|TestTreeKindWorlds|TestLedgerWorlds'

# Some of them with the race detector, all without it, since it would take seven times as long.
worlds:
	go test -race -run 'TestWorlds|TestTreeWorlds|TestKindWorlds|TestTreeKindWorlds|TestLedgerWorlds' ./internal/sim -seeds 20 -v -timeout 30m | grep -v '^=== '
	go test -run 'TestWorlds|TestTreeWorlds' ./internal/sim -seeds $(SEEDS) -v -timeout 30m | grep -v '^=== '
	go test -run 'TestKindWorlds|TestTreeKindWorlds|TestLedgerWorlds' ./internal/sim -seeds $(KINDS) -v -timeout 30m | grep -v '^=== '

# Form: formatting, vet, linters, tidy modules, other systems, known vulnerabilities.
check:
	@scripts/setup check
	scripts/check

# Benchmarks print their figures, and keep them in figures/. BEFORE=REV compares them with those of a commit.
bench: install-servers
	scripts/bench

# Long fault runs print their figures, and keep them in figures/.
prove: install-servers
	$(MAKE) mutants
	scripts/prove

# The artifacts of a release, in dist: archives, packages, images, SBOMs and checksums. See docs/releasing.md.
dist:
	@scripts/setup packages
	scripts/dist

# Makes them and tries them as their users would. Needs root.
dist-test:
	@scripts/setup dist
	scripts/dist-test

# The promises with what each of their tests checks, in dist/EVIDENCE.md.
evidence:
	mkdir -p dist
	go run ./internal/evidence >dist/EVIDENCE.md

# Switches off one safety rule after another; a test must fail each time. Single ones: go run ./internal/mutants -run redis
mutants: install-servers
	go test ./internal/sim -run TestMutants -all -timeout 1h
	go run ./internal/mutants

setup:
	@scripts/setup

install-servers:
	@scripts/setup servers
