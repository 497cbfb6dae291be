# Every target says what it does: make help.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:

GO       ?= go
LINT     := $(GO) tool -modfile=$(CURDIR)/tools/go.mod golangci-lint
GOTESTSUM := $(GO) tool -modfile=$(CURDIR)/tools/go.mod gotestsum
# How often a test that failed is run again.
RETRIES  ?= 2
# Paths in what is compiled are those of modules: a clone elsewhere compiles nothing again.
export GOFLAGS := $(GOFLAGS) -trimpath
MODULES  := . bench examples tools/release
FUZZTIME ?= 10s
PREFIX   ?= /usr/local
# The tag of this commit, if it has one. Otherwise Go writes the commit into the binary.
VERSION  ?= $(shell git describe --tags --exact-match 2>/dev/null)
# No symbols for debuggers, and no tracing pages of gRPC, which would link html/template:
# together they halve the binary.
BUILD    := CGO_ENABLED=0 $(GO) build -tags grpcnotrace -ldflags '-s -w$(if $(VERSION), -X main.version=$(VERSION))'
# Bytes of the binary: 50 MB, and 5 % for what has no other place. The code of the admin operations is the first to look at.
MAX_SIZE := 52500000
# Not empty if npm and a Node are here that can build the dashboard. An older Node counts as none.
NODE     := $(shell command -v npm >/dev/null && node -e 'const [a, b] = process.versions.node.split(".").map(Number); if (a > 20 || a === 20 && b >= 19) console.log(process.version)' 2>/dev/null)
# SQLite is C, translated to Go: under the race detector it takes eight times as long, and it
# shares nothing with our code. What go vet would say, make lint and make verify say.
RACE     := -race -gcflags='modernc.org/...=-race=false' -vet=off -shuffle=on -count=1
# Packages whose tests take a few seconds and start no server: they run first.
FAST     := . ./rule ./identity ./memstore ./storetest ./engine ./internal/kit/... ./internal/door/... ./grpclimit/descriptor ./web
# What programs import is built for other processors, too: one of 32 bits, and one with
# instructions of its own.
LIBRARY  := . ./engine ./grpclimit/... ./httplimit ./identity ./layer ./memstore ./redisstore ./rule ./storetest
ARCHS    := 386 arm64
# The parts of the Redis script, which are one script: what one defines, the next uses.
LUA      := $(shell sed 's,.*,redisstore/lua/&.lua,' redisstore/lua/order)

.PHONY: help
help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: build ## Build and serve: a demo, all in memory; RUN="--config stint.toml" for your own
	./stint serve $(RUN)

.PHONY: build
build: $(if $(NODE),web,no-web) ## Build ./stint, with the dashboard if there is Node
	$(BUILD) -o stint ./cmd/stint

.PHONY: install
install: ## Install what make build has built: PREFIX (/usr/local), DESTDIR
	@test -x stint || $(MAKE) build
	install -D -m 755 stint $(DESTDIR)$(PREFIX)/bin/stint

.PHONY: release
release: node web ## Build what people install into dist/: archives, packages, the image; of the commit, and of the newest version in CHANGELOG.md
	cd tools/release && $(GO) run . -root $(CURDIR) -out $(CURDIR)/dist

.PHONY: push
push: ## Push the image of make release to a registry: IMAGE=registry.example.com/stint:0.1.0
	@test -n "$(IMAGE)" || { echo "want IMAGE=REGISTRY/NAME:TAG" >&2; exit 1; }
	cd tools/release && $(GO) run . -out $(CURDIR)/dist push $(IMAGE)

.PHONY: web
web: web/dist/index.html ## Build the dashboard

web/dist/index.html: web/node_modules/.package-lock.json web/index.html web/docs.html httplimit/openapi.json $(wildcard web/*.ts web/*.js) $(shell find web/src -type f)
	cd web && npm run --silent build

web/node_modules/.package-lock.json internal/e2e/sdk/node_modules/.package-lock.json: %/node_modules/.package-lock.json: %/package.json %/package-lock.json | node
	cd $* && npm ci --no-audit --no-fund
	@touch $@

.PHONY: node
node:
	@test -n "$(NODE)" || { echo "the dashboard and the tests need npm and Node 20.19 or later; found: node $$(node --version 2>/dev/null || echo none), npm $$(npm --version 2>/dev/null || echo none)" >&2; exit 1; }

.PHONY: no-web
no-web:
	@echo "no npm, or no Node 20.19 or later: building without the dashboard; the page in its place says how to get it"

.PHONY: test-web
test-web: node web ## Check the dashboard's types, and run its tests
	cd web && npm run --silent check && npm test --silent

.PHONY: screenshots
screenshots: web ## Take the pictures of docs/dashboard.md anew; takes some minutes
	STINT_DOC_SCREENSHOTS=$(CURDIR)/docs/images $(GO) test -run '^TestDashboardPages$$' -count=1 -timeout 15m ./internal/e2e

.PHONY: sdk
sdk: internal/e2e/sdk/node_modules/.package-lock.json ## Install the official clients of language models, for their tests

.PHONY: test
test: node deps test-exact test-web sdk test-race ## Install what is missing, and run every test: the fast ones first

.PHONY: test-race
test-race: ## Run every test under the race detector, in random order; one that fails is run again alone: RETRIES=0 for none
	@run=$$(mktemp) && trap 'rm -f "$$run"' EXIT && failed=0 && \
		$(GOTESTSUM) --format standard-quiet --hide-summary skipped --jsonfile "$$run" --rerun-fails=$(RETRIES) --rerun-fails-max-failures=8 \
			--rerun-fails-abort-on-data-race --packages "$(FAST) $$($(GO) list ./... | grep -v /internal/e2e$$ | tr '\n' ' ') ./internal/e2e" \
			-- $(RACE) -timeout 20m || failed=1; \
		(cd tools && $(GO) run ./flakes "$$run") && exit $$failed
	cd examples && $(GO) test -count=1 ./...

.PHONY: test-envoy
test-envoy: ## Run the tests of envoyproxy/ratelimit with Stint in its place, on the ports that they expect; takes two minutes
	$(GO) test -tags reference -run '^TestReferenceSuite$$' -count=1 -timeout 15m ./internal/e2e

.PHONY: test-gateway
test-gateway: ## Run Stint as the rate limit service of Envoy Gateway, whose code takes minutes to download and compile
	cd internal/e2e/gateway && $(GO) mod tidy -diff && $(GO) mod verify && $(GO) vet ./...
	$(GO) test -tags gateway -run '^TestEnvoyGateway$$' -count=1 -timeout 30m ./internal/e2e

.PHONY: test-release
test-release: node web ## Build a release twice, install its packages on a fresh Debian, run its image; as root, and it takes minutes
	@tools/install.sh debootstrap:debootstrap rpm:rpm systemd-analyze:systemd unshare:util-linux
	cd tools/release && export PATH="$$PATH:/usr/sbin:/sbin" && $(GO) test -count=1 -timeout 60m $(if $(filter-out 0,$(shell id -u)),-exec "sudo -n env PATH=$$PATH HOME=$$HOME") ./...

.PHONY: test-deploy
test-deploy: ## Check the Helm chart, the manifests and the files for Compose, by the code of Helm, Kubernetes and Compose, which takes minutes to compile
	cd tools/deploy && $(GO) mod tidy -diff && $(GO) mod verify && $(GO) vet ./... && $(GO) test -count=1 ./...

# The version before this one. Until there is a tag, the last commit whose schema had no migration of this version.
FROM ?= $(shell git describe --tags --abbrev=0 2>/dev/null || echo 71d0ce9)

.PHONY: test-upgrade
test-upgrade: ## Have nodes of an earlier version and of this one serve together, and go back: FROM=v0.1.0
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && mkdir "$$dir/src" && git archive $(FROM) | tar -x -C "$$dir/src" && \
		(cd "$$dir/src" && CGO_ENABLED=0 $(GO) build -tags grpcnotrace -o "$$dir/stint" ./cmd/stint) && \
		STINT_OLD="$$dir/stint" $(GO) test -tags upgrade -run '^TestUpgrade$$' -count=1 -timeout 15m ./internal/e2e

.PHONY: test-exact
test-exact: ## Run the tests that count allocations and bytes, which the race detector would disturb
	@files=$$(grep -rl --include='*_test.go' --exclude-dir=node_modules '^//go:build exact$$' .) && \
		$(GO) test -tags exact -count=1 -run "^($$(sed -n 's/^func \(Test[A-Za-z]*\)(.*/\1/p' $$files | sort -u | paste -sd '|'))$$" \
		$$(dirname $$files | sort -u)

.PHONY: torture
torture: deps ## Kill, pause, cut and starve what runs, and judge times, shares and memory: a table ends it; takes hours
	@table=$$(mktemp) && failed=0 && STINT_TORTURE_TABLE="$$table" $(GOTESTSUM) --format pkgname --hide-summary skipped --rerun-fails=2 \
			--packages "$(or $(PKG),./...)" -- -tags torture -count=1 -p 1 -timeout 2h || failed=1; \
		sort -u "$$table" | awk -F '\t' 'BEGIN { printf "%-4s  %-60s  %-50s  %-24s  %s\n", "", "test", "figure", "asked", "measured" } \
			{ printf "%-4s  %-60s  %-50s  %-24s  %s\n", $$5, $$1, $$2, $$3, $$4 }'; rm -f "$$table"; exit $$failed
	$(if $(PKG),,$(MAKE) bench-outages bench-leases bench-quotas bench-regions fuzz FUZZTIME=1m)

.PHONY: flaky
flaky: ## Run tests that wait or start servers 20 times beside busy loops: PKG=./internal/daemon RUN=TestDrain COUNT=200
	@GO='$(GO)' RUN='$(RUN)' COUNT='$(COUNT)' tools/flaky.sh $(PKG)

.PHONY: lint
lint: ## Run the linters over every module
	@for m in $(MODULES); do echo "lint $$m"; (cd $$m && $(LINT) run -c $(CURDIR)/.golangci.yml ./...) || exit 1; done
	@echo "lint redisstore/lua"; cat $(LUA) | luacheck --quiet --config .luacheckrc -

.PHONY: verify
verify: ## Check module files, other processors, and the size of the binary
	@for m in $(MODULES) bench/ratelimit tools; do echo "verify $$m"; (cd $$m && $(GO) mod tidy -diff && $(GO) mod verify) || exit 1; done
	$(GO) build ./...
	$(GO) vet -tags 'exact gateway reference scale torture upgrade' ./... # tests that make test does not run
	cd bench && $(GO) build -o /dev/null .
	@for a in $(ARCHS); do echo "verify $$a"; GOARCH=$$a $(GO) build $(LIBRARY) || exit 1; done
	@echo "verify the size of the binary"; f=$$(mktemp) && trap 'rm -f "$$f"' EXIT && $(BUILD) -o "$$f" ./cmd/stint && size=$$(wc -c <"$$f") && \
		{ test $$size -le $(MAX_SIZE) || { echo "the binary has $$size bytes, and may have $(MAX_SIZE)" >&2; exit 1; }; }

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (10s)
	@for p in $$($(GO) list ./...); do \
		for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz'); do \
			echo "fuzz $$p $$f"; \
			$(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$p || exit 1; \
		done; \
	done

.PHONY: proto
proto: ## Generate the messages of gRPC anew: between regions, and of reservations
	@tools/install.sh protoc:protobuf-compiler
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
		$(GO) build -modfile=tools/go.mod -o "$$dir/" google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc && \
		PATH="$$dir:$$PATH" protoc --go_out=. --go_opt=paths=source_relative \
		--go-grpc_out=. --go-grpc_opt=paths=source_relative internal/region/link/linkpb/link.proto grpclimit/stintpb/stint.proto

.PHONY: bench
bench: ## Measure against the peers, in one run, and print the ratios
	cd bench && $(GO) run .

.PHONY: bench-outages
bench-outages: ## Break Redis in every way, and measure how much 2 and 3 nodes admit in a window; takes minutes
	$(GO) test -tags scale -run '^TestOutages$$' -count=1 -timeout 30m -v ./layer

.PHONY: bench-capacity
bench-capacity: ## Give USERS (10 million) a counter each in Redis, and ask for RATE (100,000) decisions a second; takes minutes and gigabytes
	$(GO) test -tags scale -run '^TestCapacity$$' -count=1 -timeout 1h -v ./redisstore -args -users $(or $(USERS),10000000) -rate $(or $(RATE),100000)

.PHONY: bench-leases
bench-leases: ## Simulate leases with 10^8 decisions, and make 10^7 in four processes on each kind of Redis; takes minutes
	$(GO) test -tags scale -run '^TestLease(Simulation|Load|Latency|Failover|ClockSteps)$$' -count=1 -timeout 1h -v ./layer

.PHONY: bench-quotas
bench-quotas: ## Simulate 50 Envoys with quotas for ten minutes of their time
	$(GO) test -tags scale -run '^TestFleet$$' -count=1 -timeout 30m -v ./grpclimit/rlqs

.PHONY: bench-regions
bench-regions: ## Simulate quotas, gossip and a central region with 10^7 requests each (the last one differs each time, in the order of goroutines at one instant), and measure 3 real regions; takes minutes
	$(GO) test -tags scale -run '^TestSimulation$$' -count=1 -timeout 30m -v ./internal/region/quota
	$(GO) test -tags scale -run '^TestSimulationLong$$' -count=1 -timeout 30m -v ./internal/region/gossip
	$(GO) test -tags scale -run '^TestCentralLong$$' -count=1 -timeout 30m -v ./internal/region
	$(GO) test -tags scale -run '^TestRegionsScale$$' -count=1 -timeout 30m -v ./internal/e2e

.PHONY: bench-split
bench-split: ## Ask for one hot counter on a Cluster of four primaries, in one part and in eight; takes a minute
	$(GO) test -tags scale -run '^TestSplitLoad$$' -count=1 -timeout 30m -v ./layer

.PHONY: bench-scale
bench-scale: ## Look up API keys among USERS, list them, ask about EVENTS (10 million each), and open pages beside 50 nodes, in PostgreSQL; takes minutes and gigabytes
	$(GO) test -tags scale -run '^TestScale$$' -count=1 -timeout 2h -v ./internal/control/catalog -args -users $(or $(USERS),10000000)
	$(GO) test -tags scale -run '^TestScale$$' -count=1 -timeout 2h -v ./internal/control/admin -args -users $(or $(USERS),1000000) -events $(or $(EVENTS),10000000)
	$(GO) test -tags scale -run '^TestScale' -count=1 -timeout 2h -v ./internal/record
	$(GO) test -tags scale -run '^TestScale' -count=1 -timeout 2h -v ./internal/record/rollup -args -events $(or $(EVENTS),10000000)
	$(GO) test -tags scale -run '^TestDashboardScale$$' -count=1 -timeout 2h -v ./internal/e2e

.PHONY: deps
deps: ## Install the Debian packages that the tests need, without starting their services
	@tools/install.sh cc:gcc cc:libc6-dev redis-server:redis-server postgres:postgresql sqlite3:sqlite3 luacheck:lua-check \
		nginx:nginx-light caddy:caddy curl:curl python3:python3 h2load:nghttp2-client chromium:chromium promtool:prometheus
