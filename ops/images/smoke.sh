#!/usr/bin/env bash
# Starts what an image is for, inside the image, as its own user: smoke.sh DIR expander|worker|jobs
# The expander answers a query and ends by SIGTERM; a worker says what it waits for; a job rebuilds a catalogue of two items.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$1 name=$2
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
chmod 777 "$work"; mkdir "$work/data"
printf '{"id": "a", "title": "Velvet sofa", "text": "Green."}\n{"id": "b", "title": "Oak table", "text": "Round."}\n' >"$work/data/items.jsonl"
chmod -R a+rX "$work"

inside() { "$here/images.sh" run "$dir" "$name" -v "$work:/smoke" -- "$@"; }

test "$(inside id -u)" = 10001 || { echo "$name: not user 10001" >&2; exit 1; }
case $name in
  expander)
    port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
    inside sh -c "cogr-ops serve --port $port & process=\$!
      for i in \$(seq 300); do python -c \"import urllib.request as u; print(u.urlopen(u.Request('http://127.0.0.1:$port/expand', b'{\\\"query\\\": \\\"green sofa\\\"}')).read().decode())\" 2>/dev/null && break; sleep 0.2; done
      kill -TERM \$process; wait \$process" | tee "$work/out" || true
    grep -q '"keywords":\["green sofa"\]' "$work/out" ;;
  worker)
    inside cogr-ops worker --set dataset.loader=jsonl --help >/dev/null
    inside python -c 'import lightgbm, celery, openai, opentelemetry' ;;
  jobs)
    printf 'store = "/smoke/store"\n[dataset]\nloader = "jsonl"\npath = "/smoke/data"\n' >"$work/cogr.toml"
    inside cogr-index rebuild --side item --generator extractive -c /smoke/cogr.toml --json
    inside python -c 'import torch, trl, lightgbm' ;;
esac
echo "$name: well"
