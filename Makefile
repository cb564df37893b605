# Everything here sets up what it needs on a Debian machine with Go: see scripts/setup.

# So that a test that fails behind a pipe fails.
SHELL       := /bin/bash
.SHELLFLAGS := -eo pipefail -c

MODULES := . cmd/holdfast test
SERVERS := store/redis store/etcd store/gcs test/redis
SEEDS   ?= 10000

.PHONY: run test servers check bench prove build setup

build: setup
	go build -o bin/holdfast ./cmd/holdfast

# The main job on the embedded store: one command under a lock, no server anywhere.
run: build
	./bin/holdfast run --ttl 10s hello -- sh -c 'echo "holding $$HOLDFAST_LOCK under token $$HOLDFAST_TOKEN"'
	./bin/holdfast list

# All tests, with the race detector. The simulation runs its many worlds without it, since it would take seven times as
# long, and some of them with it.
test: setup
	for m in $(MODULES); do (cd $$m && go test -race -shuffle=on -timeout 15m ./... -skip 'TestWorlds|TestTreeWorlds') || exit 1; done
	go test -race -run TestWorlds ./internal/sim -seeds 500 -v | grep -v '^=== '
	go test -run TestWorlds ./internal/sim -seeds $(SEEDS) -v | grep -v '^=== '
	scripts/readme

# The stores in the making, on real servers: Redis from Debian, etcd built from its module; and the engine of the latter in
# fake time. They are not part of test yet.
servers: setup
	scripts/setup servers
	go test -run TestTreeWorlds ./internal/sim -seeds $(SEEDS) -v | grep -v '^=== '
	for m in $(SERVERS); do (cd $$m && go test -race -shuffle=on -timeout 15m ./...) || exit 1; done

# Form: formatting, vet, linters, tidy modules, other systems, known vulnerabilities.
check: setup
	scripts/check

# Benchmarks print their figures, and keep them in bench/.
bench: setup
	scripts/bench

# Long fault runs print their figures, and keep them in prove/.
prove: setup
	scripts/prove

setup:
	@scripts/setup
