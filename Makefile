# What a developer runs. `make test` is what continuous integration runs; it installs what it needs.
# Variables: ENVOY (version), ENVOY_BIN (own binary); see scripts/get-envoy.

ENVOY ?= 1.40.0
export ENVOY
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
FILTER_WASM := $(TARGET_DIR)/wasm32-wasip1/wasm/filter.wasm

.PHONY: help setup toolchain wasm bins test lint test-core test-wasm test-envoy demo simulate bench bench-sidecar chaos soak up check-vllm clean

help:
	@echo "make test        everything: format, lints, unit, Wasm and Envoy tests"
	@echo "make test-core   the tests of the core only (also test-wasm, test-envoy)"
	@echo "make wasm        build $(FILTER_WASM)"
	@echo "make demo        round_robin against cache_aware, or another POLICY, on four fake engines"
	@echo "make simulate    the same in virtual time, RUNS=20 times over WORKLOADS=1 workloads, without Envoy"
	@echo "make chaos       SEED=1 N=10000 requests of all fates while engines, VMs and configurations come and go"
	@echo "make soak        N=1000000 SEED=1 interleavings of up to eight VMs over one store; or whether memory stops"
	@echo "                 growing: TREE=8MiB N=200000 (prompts), KEYS=1000000 (routing keys), PINS=1000000 (keys that"
	@echo "                 manual gives a worker, MAX_STICKY_KEYS=1048576)"
	@echo "make fuzz        fuzz every parser; TARGET=config (a file of fuzz/targets), SECONDS=60"
	@echo "make bench       what the filter costs: CPU time per request beside Envoy alone (some 10 minutes);"
	@echo "                 PEER=smg,extproc adds SMG and an idle ext_proc picker; for short runs also ROUNDS, POLICIES,"
	@echo "                 PROMPT_KB, MIX, WORKERS, CONCURRENCY, STREAM_CHUNKS, REQUESTS"
	@echo "make bench-sidecar  the sidecar's CPU time and memory with ENGINES=1000 polled every second; also INTERVAL,"
	@echo "                 MEASURE_SECONDS"
	@echo "make up          keep Envoy, sidecar and four fake engines running, or WORKERS=\"http://ip:port …\" instead;"
	@echo "                 also POLICY, PORT, ADMIN_PORT, CONCURRENCY, CONFIG=file.json, ENVOY_BIN, LOG_LEVEL,"
	@echo "                 LOAD_MONITOR_INTERVAL, RESPONSES=1 (the module that remembers who holds which response)"
	@echo "make check-vllm  the same Envoy in front of two real vLLM engines on this CPU (downloads 3 GB at first)"
	@echo "make clean       remove what was built"

toolchain:
	@scripts/get-toolchain

setup: toolchain
	@scripts/get-envoy >/dev/null

wasm: toolchain
	cargo build --quiet --profile wasm -p filter -p filter-responses --target wasm32-wasip1
	cargo build --quiet --profile wasm -p filter-crash-for-tests --target wasm32-wasip1

# One selection of packages everywhere: with another one cargo would build the dependencies, a Wasm compiler among them,
# with other features a second time. The filter itself has no native tests.
NATIVE := --workspace --exclude filter --exclude filter-responses --exclude filter-crash-for-tests

# Programs that the tests start.
bins: toolchain
	cargo build --quiet $(NATIVE) --bins

lint: toolchain
	cargo fmt --all --check
	cargo clippy --quiet --workspace --all-targets -- -D warnings
	cargo clippy --quiet -p filter -p filter-responses --target wasm32-wasip1 -- -D warnings
	cargo clippy --quiet -p filter-crash-for-tests --target wasm32-wasip1 -- -D warnings

test: setup wasm lint bins
	cargo test $(NATIVE) --lib --bins --tests --no-fail-fast

test-core: toolchain
	cargo test -p filter-core --lib --tests

test-wasm: wasm
	cargo test $(NATIVE) --test wasm

test-envoy: setup wasm bins
	cargo test $(NATIVE) --test envoy

demo: setup wasm bins
	$(TARGET_DIR)/debug/demo

simulate: bins
	$(TARGET_DIR)/debug/simulate

# Not part of `make test`, which has a short version of each: minutes.
chaos: setup wasm bins
	@exec $(TARGET_DIR)/debug/chaos

ifneq ($(strip $(TREE)$(KEYS)$(PINS)),)
soak: setup wasm bins
	@exec $(TARGET_DIR)/debug/soak-memory
else
# The Wasm tier's interleavings for half an hour instead of seconds; what fails is repeated with the SEED that it prints.
soak: wasm
	SEED=$(or $(SEED),1) INTERLEAVINGS=$(or $(N),1000000) cargo test $(NATIVE) --test wasm -- --nocapture any_interleaving
endif

# The picker is part of what is measured, so it is built as one would deploy it; clients and engines are not.
bench: setup wasm bins
	cargo build --quiet --release -p ext-proc-picker
	@smg=; case ",$(PEER)," in *,smg,*) smg=$$(scripts/get-smg);; esac; \
	SMG_BIN=$$smg PICKER_BIN=$(TARGET_DIR)/release/ext-proc-picker exec $(TARGET_DIR)/debug/bench

# The sidecar is what is measured, so it is built as one would deploy it.
bench-sidecar: bins
	cargo build --quiet --release -p sidecar-loadmonitor
	@SIDECAR_BIN=$(TARGET_DIR)/release/sidecar-loadmonitor exec $(TARGET_DIR)/debug/bench-sidecar

# `exec`, so that a signal for make's child reaches the stack and no shell in between.
up: setup wasm bins
	@exec $(TARGET_DIR)/debug/up

# bash has a variable SECONDS of its own, which make must not take for ours.
.PHONY: fuzz
fuzz: toolchain
	scripts/fuzz $(or $(TARGET),all) $(if $(filter command line,$(origin SECONDS)),$(SECONDS),60)

# Not part of `make test`: downloads 3 GB at the first run.
check-vllm: setup wasm bins
	@exec scripts/check-vllm

clean:
	cargo clean
