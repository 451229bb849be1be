#!/bin/sh
# Makes .venv from the pins, and does nothing when neither they nor pyproject.toml changed.
# Run by `make setup`, and by `make demo` and `make test-fast`, which need less, with the argument
# `demo` or `fast`.
# PYTHON names the interpreter; the first Python >= 3.11 on the PATH otherwise.
# TORCH=cuda takes PyTorch's build for GPUs; PyTorch's build for the CPU otherwise, where it
# can be had.
set -eu
cd "$(dirname "$0")/.."
venv=.venv
wanted=${1:-dev}

fail() {
  echo "$1" >&2
  exit 2
}

# A Python that is on the PATH, starts, and is new enough.
find_python() {
  for python in ${PYTHON:-python3 python3.11 python3.12 python3.13}; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$python"
      return
    fi
  done
  tried=${PYTHON:-python3, python3.11, python3.12, python3.13}
  fail "No Python 3.11 or newer was found (tried $tried): install one, or name it:\
 make setup PYTHON=/path/to/python."
}

# What the environment was made from: same words, nothing to do.
fingerprint() {
  cat requirements/*.txt requirements/install.sh pyproject.toml | cksum
  pwd
  echo "${TORCH:-cpu}"
}

# True where the environment was made from today's pins, for $wanted or for more.
is_made() {
  [ -x "$venv/bin/python" ] || return 1
  made=$(cat "$venv/.made-from" 2>/dev/null) || return 1
  [ "$made" = "$(fingerprint; echo "$wanted")" ] || [ "$made" = "$(fingerprint; echo dev)" ]
}

# The pins of $wanted. uv itself knows where PyTorch's CPU builds are; they need none of CUDA's
# libraries. Where they can't be reached, the package index has its one build for Linux, with CUDA.
install_pins() {
  list="requirements/$wanted.txt"
  if [ "${TORCH:-cpu}" = cpu ] && [ "$(uname -sm)" = "Linux x86_64" ]; then
    without_cuda="$venv/without-cuda.txt"
    grep -vE '^(nvidia|cuda)-' "$list" >"$without_cuda"
    if UV_HTTP_RETRIES=1 "$uv" pip install --quiet --no-deps --torch-backend cpu \
      -r "$without_cuda" 2>"$venv/torch-cpu.log"; then
      return
    fi
    reason=$(head -n 1 "$venv/torch-cpu.log")
    echo "PyTorch's build for the CPU could not be installed: $reason" >&2
    echo "Taking the package index's build with CUDA's libraries, 3 GB more." >&2
    echo "It runs on the CPU." >&2
    # The libraries that torch links must be there; these it loads on a GPU alone.
    if [ "$wanted" = demo ]; then
      list="$venv/demo.txt"
      grep -vE '^(triton|nvidia-cusolver|nvidia-nvtx)=' requirements/demo.txt >"$list"
    fi
  fi
  "$uv" pip install --quiet --no-deps -r "$list"
}

# Where uv keeps what it fetches: its own place, or beside the project where that can't be written
# (a read-only home).
choose_uv_cache() {
  [ -z "${UV_CACHE_DIR:-}" ] || return 0
  nearest="${XDG_CACHE_HOME:-${HOME:-/nowhere}/.cache}/uv"
  while [ ! -e "$nearest" ]; do nearest=$(dirname "$nearest"); done
  [ -w "$nearest" ] && [ "$nearest" != / ] || export UV_CACHE_DIR="$PWD/.cache/uv"
}

# uv from the PATH, if it runs, else installed into the new environment.
find_uv() {
  if uv --version >/dev/null 2>&1; then
    echo uv
  else
    PIP_NO_CACHE_DIR=1 "$venv/bin/python" -m pip install --quiet uv >&2 ||
      fail "uv could not be installed by pip; see the lines above."
    echo "$venv/bin/uv"
  fi
}

case "$wanted" in
  dev | demo | fast) ;;
  *) fail "install.sh takes 'demo', 'fast' or nothing, not '$wanted'." ;;
esac
if is_made; then
  exit 0
fi
python=$(find_python)
echo "Making $venv with $python ..." >&2
rm -f "$venv/.made-from"
if uv --version >/dev/null 2>&1; then
  "$python" -m venv --clear --without-pip "$venv"
else
  "$python" -m venv --clear "$venv" ||
    fail "$python has no venv and pip; install them (apt install python3-venv) or install uv."
fi
choose_uv_cache
uv=$(find_uv)
export VIRTUAL_ENV="$PWD/$venv"
install_pins
"$uv" pip install --quiet --no-deps --editable . --editable ops/clients/python
{ fingerprint; echo "$wanted"; } >"$venv/.made-from"
