#!/usr/bin/env bash
# A command in an image's files, read-only, as its user; images.sh runs it in a mount namespace of
# its own:
# enter.sh ROOT USER:GROUP WORKDIR [NAME=VALUE...] -- [HERE:THERE...] -- CMD...
# Not a sandbox: processes and network are this machine's.
set -euo pipefail
root=$1 user=$2 workdir=$3; shift 3
environment=() binds=("/proc:/proc" "/dev:/dev" "/sys:/sys"
  "/etc/hosts:/etc/hosts" "/etc/resolv.conf:/etc/resolv.conf")
while [ "$1" != -- ]; do environment+=("$1"); shift; done; shift
while [ "$1" != -- ]; do binds+=("$1"); shift; done; shift

mount --bind "$root" "$root"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
# Outer mounts first: a volume may lie in another one.
printf '%s\n' "${binds[@]}" | sort -t : -k 2 | while IFS=: read -r here there; do
  if [ -d "$here" ]; then
    mkdir -p "$root$there"
  else
    mkdir -p "$root${there%/*}"
    touch "$root$there"
  fi
  mount --rbind "$here" "$root$there"
done
mount -o remount,bind,ro "$root"

# shellcheck disable=SC2016
exec env -i "${environment[@]}" chroot --userspec="$user" --groups="${user#*:}" "$root" \
  /bin/sh -c 'cd "$1" && shift && exec "$@"' sh "$workdir" "$@"
