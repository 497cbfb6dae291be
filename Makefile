# Every target says what it does: make help.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:

GO       ?= go
LINT     := $(GO) tool -modfile=$(CURDIR)/tools/go.mod golangci-lint
MODULES  := . bench examples
FUZZTIME ?= 10s
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
build: $(if $(shell command -v npm),web,no-web) ## Build the binary, with the dashboard if there is Node
	CGO_ENABLED=0 $(GO) build -trimpath -o stint ./cmd/stint

.PHONY: web
web: web/dist/index.html ## Build the dashboard

web/dist/index.html: web/node_modules/.package-lock.json web/index.html $(wildcard web/*.ts web/*.js) $(shell find web/src -type f)
	cd web && npm run --silent build

web/node_modules/.package-lock.json: web/package.json web/package-lock.json
	@command -v npm >/dev/null || { echo "the dashboard and its tests take Node 20.19 or later, and npm: please install them" >&2; exit 1; }
	@node -e 'const [a, b] = process.versions.node.split(".").map(Number); if (a < 20 || a === 20 && b < 19) { console.error("the dashboard is built with Node 20.19 or later, and this is " + process.versions.node); process.exit(1) }'
	cd web && npm ci --no-audit --no-fund
	@touch $@

.PHONY: no-web
no-web:
	@echo "there is no npm here: what is built has a page in place of the dashboard, which says how to get it"

.PHONY: test-web
test-web: web ## Check the dashboard's types, and run its tests
	cd web && npm run --silent check && npm test --silent

.PHONY: test
test: deps lint verify test-web test-exact test-race ## Install what is missing, lint, verify, and run every test: what CI runs

.PHONY: test-race
# SQLite is C, translated: watched, it takes eight times as long, and what it shares is its own.
test-race: ## Run every test under the race detector, in random order
	$(GO) test -race -gcflags='modernc.org/...=-race=false' -shuffle=on -count=1 -timeout 30m ./...
	cd examples && $(GO) test -count=1 ./...

.PHONY: test-exact
test-exact: ## Run the tests that count allocations and memory, which the race detector would disturb
	$(GO) test -count=1 -run 'Allocations|Memory' ./...

.PHONY: lint
lint: ## Run the linters over every module
	@for m in $(MODULES); do echo "lint $$m"; (cd $$m && $(LINT) run -c $(CURDIR)/.golangci.yml ./...) || exit 1; done
	@echo "lint redisstore/lua"; cat $(LUA) | luacheck --quiet --config .luacheckrc -

.PHONY: verify
verify: ## Check that module files are tidy and modules are what they were
	@for m in $(MODULES) bench/ratelimit tools; do echo "verify $$m"; (cd $$m && $(GO) mod tidy -diff && $(GO) mod verify) || exit 1; done
	$(GO) build ./...
	cd bench && $(GO) build -o /dev/null .
	@for a in $(ARCHS); do echo "verify $$a"; GOARCH=$$a $(GO) build $(LIBRARY) || exit 1; done

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (10s)
	@for p in $$($(GO) list ./...); do \
		for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz'); do \
			echo "fuzz $$p $$f"; \
			$(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$p || exit 1; \
		done; \
	done

.PHONY: bench
bench: ## Measure against the peers, in one run, and print the ratios
	cd bench && $(GO) run .

.PHONY: bench-scale
bench-scale: ## Look up API keys among USERS, list them, and ask about EVENTS (10 million each), in PostgreSQL; takes minutes and gigabytes
	$(GO) test -tags scale -run '^TestScale$$' -count=1 -timeout 2h -v ./internal/control/catalog -args -users $(or $(USERS),10000000)
	$(GO) test -tags scale -run '^TestScale$$' -count=1 -timeout 2h -v ./internal/control/admin -args -users $(or $(USERS),1000000) -events $(or $(EVENTS),10000000)
	$(GO) test -tags scale -run '^TestScale' -count=1 -timeout 2h -v ./internal/record
	$(GO) test -tags scale -run '^TestScale' -count=1 -timeout 2h -v ./internal/record/rollup -args -events $(or $(EVENTS),10000000)

.PHONY: deps
deps: ## Install what the tests need, by package name
	@tools/install.sh cc:gcc cc:libc6-dev redis-server:redis-server postgres:postgresql sqlite3:sqlite3 luacheck:lua-check \
		nginx:nginx-light caddy:caddy curl:curl h2load:nghttp2-client chromium:chromium
