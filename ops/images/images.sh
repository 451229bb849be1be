#!/usr/bin/env bash
# Builds and runs the images without a Docker engine: buildah with chroot isolation, as root. `make
# images` calls it.
#   images.sh base DIR                 a stand-in for python:3.11-slim-bookworm from Debian's
#                                      packages (about 1 minute, 300 MB)
#   images.sh build DIR NAME [args]    ops/images/NAME.Dockerfile on that base, as
#                                      localhost/cogr-NAME
#   images.sh run DIR NAME [-v HERE:THERE] [-e NAME=VALUE] -- CMD...
#                                      CMD in the image as a pod runs it: its user, its files
#                                      read-only, an empty /tmp unless one is lent; on this
#                                      machine's loopback network
#   images.sh inspect DIR NAME         the image's configuration as JSON
#   images.sh sbom DIR NAME            DIR/NAME.cdx.json: the image's Python packages in CycloneDX's
#                                      format (needs make setup)
#   images.sh size DIR NAME            megabytes of what the image adds to its base
# Needs `apt-get install buildah debootstrap`. The machine's CA bundle and the pip settings of the
# environment are lent to the build, never copied into the image.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
verb=$1 dir=$(realpath -m "$2"); shift 2
ca=/etc/ssl/certs/ca-certificates.crt
base=python:3.11-slim-bookworm

for program in buildah debootstrap; do
  command -v "$program" >/dev/null && continue
  echo "No $program: apt-get install buildah debootstrap" >&2
  exit 3
done
[ "$(id -u)" = 0 ] || { echo "chroot isolation needs root" >&2; exit 2; }

b() {
  TMPDIR=$dir/tmp buildah --root "$dir/store" --runroot "$dir/run" \
    --storage-driver "${STORAGE_DRIVER:-overlay}" "$@"
}

mkdir -p "$dir/tmp"
case $verb in
  base)
    mirror=$( { cat /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null || true; } |
      sed -nE 's/^URIs: *([^ ]+).*/\1/p; s/^deb ([^ ]+).*/\1/p' | head -1)
    rm -rf "$dir/rootfs"
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv \
      bookworm "$dir/rootfs" "$mirror" >"$dir/base.log"
    rm -rf "$dir/rootfs"/var/cache/apt/archives/*.deb "$dir/rootfs"/var/lib/apt/lists/*
    ln -sf python3 "$dir/rootfs/usr/bin/python"
    c=$(b from scratch); b add -q "$c" "$dir/rootfs" / >/dev/null
    b config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$c"
    b commit -q "$c" "localhost/$base"; b rm "$c" >/dev/null; rm -rf "$dir/rootfs" ;;
  build)
    name=$1; shift
    lent=(-v "$ca:$ca:ro"); [ -f /etc/pip.conf ] && lent+=(-v /etc/pip.conf:/etc/pip.conf:ro)
    for variable in PIP_INDEX_URL UV_INDEX_URL UV_DEFAULT_INDEX SSL_CERT_FILE \
      HTTPS_PROXY HTTP_PROXY; do
      [ -z "${!variable:-}" ] || lent+=(--build-arg "$variable")
    done
    # What uv has downloaded on this machine before, and keeps for the next time.
    if kept=$(uv cache dir 2>/dev/null); then
      mkdir -p "$dir/tmp/buildah-cache"
      ln -sfn "$kept" "$dir/tmp/buildah-cache/uv"
    fi
    b bud --isolation chroot --format docker "${lent[@]}" \
      --build-context "$base=container-image://localhost/$base" \
      -f "$root/ops/images/$name.Dockerfile" --ignorefile "$root/.dockerignore" \
      -t "localhost/cogr-$name" "$@" "$root"
    # The one of that name before.
    b rmi --prune >/dev/null ;;
  run)
    name=$1; shift; lent=() variables=()
    while [ "$1" != -- ]; do
      case $1 in -v) lent+=("$2") ;; -e) variables+=("$2") ;; esac; shift 2
    done; shift
    c=$(b from "localhost/cogr-$name"); trap 'b umount "$c" >/dev/null; b rm "$c" >/dev/null' EXIT
    say() { b inspect --format "$1" "$c"; }
    mapfile -t own < <(say '{{range .OCIv1.Config.Env}}{{println .}}{{end}}' | grep .)
    unshare --mount "$root/ops/images/enter.sh" "$(b mount "$c")" \
      "$(say '{{.OCIv1.Config.User}}')" "$(say '{{.OCIv1.Config.WorkingDir}}')" \
      "${own[@]}" "${variables[@]}" -- "${lent[@]}" -- "$@" ;;
  size)
    c=$(b from "localhost/cogr-$1"); trap 'b umount "$c" >/dev/null; b rm "$c" >/dev/null' EXIT
    du -sm "$(b mount "$c")/opt/cogr" | cut -f1 ;;
  inspect)
    b inspect --type image "localhost/cogr-$1" ;;
  sbom)
    c=$(b from "localhost/cogr-$1"); trap 'b umount "$c" >/dev/null; b rm "$c" >/dev/null' EXIT
    # cyclonedx-py asks an interpreter where its packages lie; the image's own would answer with
    # paths inside.
    packages=$(echo "$(b mount "$c")"/opt/cogr/lib/python3*/site-packages)
    printf "#!/bin/sh\necho '[\"%s\"]'\n" "$packages" >"$dir/interpreter"
    chmod +x "$dir/interpreter"
    "$root/.venv/bin/cyclonedx-py" environment "$dir/interpreter" --output-reproducible \
      -o "$dir/$1.cdx.json" ;;
  *) echo "base, build, run, inspect, sbom or size" >&2; exit 2 ;;
esac
