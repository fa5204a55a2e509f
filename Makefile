# Sealstone. Two commands matter to a newcomer: `make demo` and `make test`.
# Every target sets up what it needs; on a prepared machine that costs a fraction of a second.

SHELL := /bin/bash
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: ## Install what building needs and this machine lacks (Debian packages, toolchain)
	@scripts/setup

setup-tests: ## Install what the tests need as well (LDAP and database servers, an iSCSI client)
	@scripts/setup --tests

build: setup ## Build target/release/sealstone, quickly
	@. scripts/env
	cargo build --release -p sealstone

dist: setup ## Build the optimised binary, target/dist/sealstone, and its debug information beside it
	@. scripts/env
	cargo build --profile dist -p sealstone
	scripts/split-debug $${CARGO_TARGET_DIR:-target}/dist/sealstone

engines: build ## Build the engines of functions beside target/release/sealstone, and the shipped functions
	@. scripts/env
	scripts/engines release

packages: dist ## Build Debian packages of the optimised program and of the engines in target/packages
	@. scripts/env
	scripts/engines dist
	scripts/package

demo: setup ## Store real files on three devices, attack them, run functions there: the product in a minute
	@. scripts/env
	cargo build --release -p sealstone -p sealstone-engine-c -p sealstone-function-modules \
		--bin sealstone --bin sealstone-engine-c --example count --example grep
	target/release/sealstone demo

# With the variables of `cargo clippy -- -D warnings`, cargo finds the metadata that clippy wrote, and checks no crate
# again for its documentation.
DOC_VARIABLES = RUSTC_WORKSPACE_WRAPPER="$$(rustc --print sysroot)/bin/clippy-driver" \
	CLIPPY_ARGS="-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__" RUSTDOCFLAGS="-D warnings"

# Selects the features of the whole workspace; `cargo run -p xtask` would build its dependencies again with fewer.
BUILD_XTASK = cargo build -q --workspace --bin xtask
XTASK = $${CARGO_TARGET_DIR:-target}/debug/xtask

check: setup-tests ## The quick gate: format, lints, docs, tidy, unit tests
	@. scripts/env
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	$(DOC_VARIABLES) cargo doc --workspace --no-deps --quiet
	scripts/engine-wasm lint
	$(BUILD_XTASK)
	$(XTASK) tidy
	cargo test --workspace --lib --bins

test: setup-tests ## Everything but the lints of the WebAssembly engine: the gate, purity, all tests, fuzz smoke
	@. scripts/env
	TIMEFORMAT='  %0R s'
	step() { echo "$$*"; time "$$@"; }
	# State for incremental builds takes time and 13 GB: it is kept up to date where it exists, but not begun here.
	# Cargo creates the folder, empty, in any case.
	[ -n "$$(ls -A "$${CARGO_TARGET_DIR:-target}/debug/incremental" 2>/dev/null)" ] || export CARGO_INCREMENTAL=$${CARGO_INCREMENTAL:-0}
	log=$$(mktemp)
	# A workspace of its own, whose largest crates keep one core busy: it builds beside the checks of the others, in
	# a process group of its own, which ends with this recipe.
	setsid scripts/engine-wasm test >$$log 2>&1 &
	engine=$$!
	trap 'kill -- -$$engine 2>/dev/null || true; rm -f $$log' EXIT
	engine_wasm_test() { local code=0; wait $$engine || code=$$?; cat $$log; return $$code; }
	step cargo fmt --all --check
	step $(BUILD_XTASK)
	step $(XTASK) tidy
	step $(XTASK) purity
	step cargo clippy --workspace --all-targets -- -D warnings
	$(DOC_VARIABLES) step cargo doc --workspace --no-deps --quiet
	step engine_wasm_test
	step scripts/engine-java build
	step $(XTASK) tests

setup-python: ## Install what the tests of the Python package need as well
	@scripts/setup --python

test-python: setup-python ## Build the Python package for tests, check its types, run its tests (needs Python 3.11 and pip)
	@. scripts/env
	scripts/python test

FUZZ_TARGETS ?= osd-cdb osd-capability osd-attribute-lists osd-continuation iscsi-target iscsi-login
FUZZ_SECONDS ?= 600

fuzz: setup-tests ## Coverage-guided fuzzing of what unauthenticated peers reach, ten minutes each (needs nightly)
	@. scripts/env
	scripts/fuzz --seconds $(FUZZ_SECONDS) $(FUZZ_TARGETS)

TORTURE_SECONDS ?= 120

torture: build ## Kill real daemons under load repeatedly, and compare their data with the acknowledged changes
	@. scripts/env
	cargo run --release -q -p sealstone-torture -- --seconds $(TORTURE_SECONDS)

BENCH_RUNS ?= 3
BENCH_FOLDER ?= target/bench

bench: dist ## All figures and aims, as tables, as JSON and as plots in target/bench/
	@. scripts/env
	cargo build --profile dist -p sealstone-bench -p sealstone-engine-c -p sealstone-engine-java -p sealstone-engine-python
	scripts/engine-java build
	scripts/engine-wasm build dist
	cargo build --profile dist -p sealstone-store -p sealstone-embed --examples
	bin=$${CARGO_TARGET_DIR:-target}/dist
	mkdir -p $(BENCH_FOLDER)/scratch
	trap 'rm -rf $(BENCH_FOLDER)/scratch' EXIT
	echo "== methods, sizes, depths" && $$bin/sealstone-bench run --runs $(BENCH_RUNS) --json $(BENCH_FOLDER)/figures.json
	echo "== ALLDATA by algorithm, aligned and not" && $$bin/sealstone-bench run --algorithms --runs $(BENCH_RUNS) \
		--json $(BENCH_FOLDER)/algorithms.json --plots $(BENCH_FOLDER)
	echo "== reads by stored digests, beside a client that hashes as well" && $$bin/sealstone-bench run --only read-sequential \
		--contenders NOSEC,NOSEC-HASHED,ALLDATA --runs $(BENCH_RUNS) --json $(BENCH_FOLDER)/reads.json
	echo "== durable writes, beside a plain file" && $$bin/examples/durable $(BENCH_FOLDER)/scratch $(BENCH_RUNS) files \
		| tee $(BENCH_FOLDER)/durable.json
	echo "== embedded clusters, from the start to the first stored byte" && $$bin/examples/start 20 | tee $(BENCH_FOLDER)/embedded.json
	echo "== a store of 1,000,000 objects" && SEALSTONE_OPEN_JSON=1 $$bin/examples/open 1000000 0 $(BENCH_FOLDER)/scratch/open \
		| tee $(BENCH_FOLDER)/open.json
	echo "== working keys of 1,000 partitions" && $$bin/sealstone-bench rotation --json $(BENCH_FOLDER)/rotation.json
	echo "== logins and logouts" && $$bin/sealstone-bench logins --json $(BENCH_FOLDER)/logins.json
	echo "== what trust costs" && $$bin/sealstone-bench trust --json $(BENCH_FOLDER)/trust.json
	echo "== metadata stores, record by record" && $$bin/sealstone-bench stores --folder $(BENCH_FOLDER)/scratch \
		--json $(BENCH_FOLDER)/stores.json
	echo "== files, through a mount and the library" && $$bin/sealstone-bench files --runs $(BENCH_RUNS) \
		--scenarios metadata,small,durable,stream,devices,depth,million --folder $(BENCH_FOLDER)/scratch --json $(BENCH_FOLDER)/files.json
	echo "== functions on devices" && $$bin/sealstone-bench active --count-mib 1024 --folder $(BENCH_FOLDER)/scratch \
		--json $(BENCH_FOLDER)/active.json
	echo "== protection of block units" && $$bin/sealstone-bench lazy --folder $(BENCH_FOLDER)/scratch \
		--json $(BENCH_FOLDER)/lazy.json --plots $(BENCH_FOLDER)
	echo "== aims" && $$bin/sealstone-bench aims $(BENCH_FOLDER)

bench-pace: dist ## Small requests beside large ones, with each switch that orders them: a table, and JSON
	@. scripts/env
	cargo build --profile dist -p sealstone-bench
	mkdir -p $(BENCH_FOLDER)
	$${CARGO_TARGET_DIR:-target}/dist/sealstone-bench pace --runs $(BENCH_RUNS) --json $(BENCH_FOLDER)/pace.json

clean: ## Remove build output
	@rm -rf target

.PHONY: help setup setup-tests setup-python build engines packages dist demo check test test-python fuzz torture bench bench-pace clean
