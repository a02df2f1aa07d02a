#!/bin/bash
# build_control_plane.sh DIR: builds Kubernetes 1.20 with its kubelet from Debian 12's source package, with etcd beside, into DIR.
# Needs network and 3 GB; takes about 5 minutes on 2 cores. Installs nothing. Then:
#   GPUTUI_TEST_LANE=long GPUTUI_TEST_KUBERNETES=DIR .venv/bin/pytest -q tests/kubernetes/test_control_plane.py tests/kubernetes/test_node.py
set -euo pipefail
target=$(mkdir -p "$1" && cd "$1" && pwd)
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"
cat > debian.sources <<'SOURCES'
Types: deb deb-src
URIs: http://deb.debian.org/debian
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCES
mkdir -p lists/partial
apt=(-q -o "Dir::Etc::sourcelist=$work/debian.sources" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$work/lists"
  -o APT::Sandbox::User=root)
apt-get "${apt[@]}" update
apt-get "${apt[@]}" --download-only source kubernetes
apt-get "${apt[@]}" download golang-1.19-go golang-1.19-src etcd-server
for package in ./*.deb; do dpkg -x "$package" root; done
tar xzf kubernetes_*.orig.tar.gz
mkdir -p go/src/k8s.io && mv kubernetes-*/ go/src/k8s.io/kubernetes && cd go/src/k8s.io/kubernetes
export GOROOT=$work/root/usr/lib/go-1.19 GOPATH=$work/go GOCACHE=$work/cache GO111MODULE=off CGO_ENABLED=0
export PATH=$GOROOT/bin:$PATH
# the source package lacks the one generated file: the server's own description of its API
go build -o openapi-gen k8s.io/kubernetes/vendor/k8s.io/code-generator/cmd/openapi-gen
described=$(grep -rl --include='*.go' '+k8s:openapi-gen=' pkg staging/src cmd plugin | grep -Ev '_test.go|sample-|code-generator|testdata' |
  xargs -n 1 dirname | sort -u | sed 's#^staging/src/#k8s.io/kubernetes/vendor/#; t; s#^#k8s.io/kubernetes/#' | paste -sd,)
./openapi-gen -O zz_generated.openapi --go-header-file hack/boilerplate/boilerplate.generatego.txt -i "$described" \
  -p k8s.io/kubernetes/pkg/generated/openapi -r violations
flags="-s -w"
for package in vendor/k8s.io/component-base/version vendor/k8s.io/client-go/pkg/version; do  # one for --version, one for /version
  for value in gitVersion=v1.20.2 gitMajor=1 gitMinor=20; do flags+=" -X k8s.io/kubernetes/$package.$value"; done
done
for name in kube-apiserver kube-controller-manager kube-scheduler kubelet; do
  go build -tags providerless -ldflags "$flags" -o "$target/$name" "k8s.io/kubernetes/cmd/$name"
done
cp "$work/root/usr/bin/etcd" "$target/"
ls -l "$target"
