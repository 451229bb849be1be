#!/bin/sh
# From a team's OpenSearch to CoGR in it: items and logs out, labels from clicks, keywords in.
# All but team.py, which makes the team up, are commands that ship. See README.md beside this file.
# Run in the folder of the repository, the environment's bin on the PATH; a folder as argument.
set -eu
team="python $(cd "$(dirname "$0")" && pwd)/team.py"
folder=${1:-.from-opensearch}
url=${COGR_OPENSEARCH__URL:-$(cogr-ops opensearch start --json |
  python -c 'import json, sys; print(json.load(sys.stdin)["url"])')}
mkdir -p "$folder"
PYTHONPATH=${PYTHONPATH:-}:$PWD $team make "$url" "$folder"
cd "$folder"
rm -rf data truth store truth-store

configuration() { # folder of the data, lowest relevant grade, store
  printf 'backend = "opensearch"\nstore = "%s"\n' "$3"
  printf '[dataset]\nloader = "jsonl"\npath = "%s"\n' "$1"
  printf 'threshold = %s\n[opensearch]\nurl = "%s"\nprefix = "%s"\n' "$2" "$url" "$3"
  printf '[generator]\nname = "statistical"\n'
}
configuration data 2 store >cogr.toml
configuration truth 1 store >truth.toml
configuration truth 1 truth-store >best.toml
serving() { cogr-index list --json | python -c 'import json, sys
print(*(one["snapshot"] for one in json.load(sys.stdin)["snapshots"]
        if one["serving"] and one["side"] == "item"))'; }

echo "== What the team has becomes a data set"
cogr-index import items --index products --title name --text copy.long --updated modified
cogr-index import ubi logs.ndjson
cogr-train labels from-clicks logs.ndjson --out data --replace
cogr-index inspect

echo "== Keywords for items and queries; rare queries come from the log"
cogr-index rebuild --side item
cogr-index rebuild --side query
cogr-index update --side query --from-log logs.ndjson --min-count 1 --save data/queries.jsonl

echo "== Into the team's own index"
cogr-index publish "$(serving)" --into products

echo "== Both searches side by side"
cogr-ops serve --port 8612 >serve.log 2>&1 &
expander=$!
trap 'kill $expander 2>/dev/null || true' EXIT
until python -c 'import urllib.request as u; u.urlopen("http://127.0.0.1:8612/readyz")' 2>/dev/null
do sleep 1; kill -0 $expander; done
cogr-ops shadow logs.ndjson --present today.json --index products \
  --expander http://127.0.0.1:8612 --rate 200 --limit 200

echo "== Against the hidden truth"
PYTHONPATH=${PYTHONPATH:-}:$OLDPWD $team truth .
cogr-train evaluate -c truth.toml --split test --baselines --json >clicks.json
cogr-index rebuild --side item -c best.toml
cogr-index rebuild --side query -c best.toml
cogr-train evaluate -c best.toml --split test --json >best.json
PYTHONPATH=${PYTHONPATH:-}:$OLDPWD $team show .
