#!/usr/bin/env bash
# Builds a real Kubernetes API server for the tests of the Kubernetes engine.
#
#   scripts/build_kube_apiserver.sh OUTPUT        (such as .venv-peers/kubernetes/kube-apiserver)
#
# No registry carries the binary. Debian 12's source package of kubernetes (1.20) holds the whole tree with its
# dependencies; it is compiled with Debian's Go 1.19, both unpacked into a temporary directory: nothing is installed, and
# root is not needed. Takes about five minutes on two cores and 3 GB of disk. Later Debians package kubectl alone.
set -euo pipefail

if [ $# -ne 1 ]; then
    echo "usage: $0 OUTPUT" >&2
    exit 2
fi
mkdir -p "$(dirname "$1")"
output=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"

# The mirrors that this machine uses, for source packages too.
mkdir -p lists/partial cache/archives/partial
apt-get indextargets --format 'deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' | sort -u >sources.list
apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' | sort -u >>sources.list
apt=(-o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache")
apt-get "${apt[@]}" update
apt-get "${apt[@]}" source --download-only kubernetes
apt-get "${apt[@]}" download golang-1.19-go golang-1.19-src

for package in golang-*.deb; do
    dpkg -x "$package" go
done
# Debian splits Go's tree in two, joined by links that point out of the directory.
cp -rL go/usr/lib/go-1.19 goroot
mkdir -p gopath/src/k8s.io/kubernetes
tar -xzf kubernetes_1.20*.orig.tar.gz --strip-components=1 -C gopath/src/k8s.io/kubernetes
rm -rf go lists cache

export GOROOT=$work/goroot GOPATH=$work/gopath GOCACHE=$work/gocache GO111MODULE=off CGO_ENABLED=0
export PATH=$GOROOT/bin:$PATH
cd gopath/src/k8s.io/kubernetes
# The tree lacks one generated file, which its own generator writes.
go build -o "$work/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
described=$(grep -rl --include='*.go' '+k8s:openapi-gen=' pkg vendor/k8s.io/*/ |
    grep -v 'code-generator\|sample-apiserver\|_test.go' | xargs -n 1 dirname | LC_ALL=C sort -u |
    sed 's#^#k8s.io/kubernetes/#' | paste -sd ,)
"$work/openapi-gen" -i "$described" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
    -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$work/violations"
go build -ldflags '-s -w' -o "$work/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver
mv "$work/kube-apiserver" "$output"
