#!/usr/bin/env bash
# Installs the chart by real Helm on a real API server: `make chart-test`. Prints one line a check
# and how many passed. Not tested by it: images, commands, probes, network, HPA metrics, KEDA
# acting; no container runs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
chart=$(cd "$here/../../../charts/cogr" && pwd)
BINARIES=$("$here/binaries.sh" all); export BINARIES PATH=$BINARIES:$PATH
work=$(mktemp -d); export STATE=$work/state KUBECONFIG=$work/state/kubeconfig
export HELM_CACHE_HOME=$work/helm HELM_CONFIG_HOME=$work/helm HELM_DATA_HOME=$work/helm
trap '"$here/cluster.sh" down; rm -rf "$work"' EXIT
"$here/cluster.sh" up >/dev/null

. "$here/counting.sh"
same() { [ "$1" = "$2" ] || { echo "wanted '$1', found '$2'"; return 1; }; }
fails() { ! "$@"; }
field() {
  "${PYTHON:-python3}" -c 'import json, sys
found = json.load(sys.stdin)
for key in sys.argv[1].split("."): found = found[key]
print(found)' "$1"
}
revision_of() { helm status "$2" -n "$1" -o json | field version; }  # NAMESPACE RELEASE
# NAMESPACE RELEASE REVISION
status_of() { helm status "$2" -n "$1" --revision "$3" -o json | field info.status; }
# The store's claim stays, as values say.
kinds=all,cm,secret,sa,netpol,pdb,ingress,httproute,scaledobject,triggerauthentication
kinds=$kinds,servicemonitor,podmonitor,prometheusrule
nothing_left() {
  local left
  left=$(kubectl get "$kinds" -n "$1" -l "app.kubernetes.io/instance=$2" -o name)
  echo "$left"
  [ -z "$left" ]
}

# The real schemas of what the chart makes for others, as their Go modules carry them.
module() { (cd "$work" && go mod download -json "$1" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p'); }
keda=$(module github.com/kedacore/keda/v2@v2.18.1)/config/crd/bases
operator=$(module github.com/prometheus-operator/prometheus-operator@v0.85.0)
operator=$operator/example/prometheus-operator-crd
gateway=$(module sigs.k8s.io/gateway-api@v1.4.0)/config/crd/standard
for file in "$keda"/keda.sh_{scaledobjects,triggerauthentications}.yaml \
  "$gateway/gateway.networking.k8s.io_httproutes.yaml" \
  "$operator"/monitoring.coreos.com_{servicemonitors,podmonitors,prometheusrules}.yaml; do
  ok "CRD $(basename "$file")" kubectl apply --server-side -f "$file"
done
ok "CRDs are established" kubectl wait --for=condition=Established crd --all --timeout=60s
for name in serving batch; do kubectl create priorityclass "$name" --value 1000 >/dev/null; done

namespace() {  # namespace NAME: restricted, with the volumes and secrets that the values files name
  kubectl create namespace "$1" >/dev/null
  kubectl label namespace "$1" pod-security.kubernetes.io/enforce=restricted >/dev/null
  kubectl -n "$1" create secret generic cogr-credentials --from-literal=redis=x \
    --from-literal=opensearch=x --from-literal=expander-token=x \
    --from-literal=hash-key=x --from-literal=endpoint=x >/dev/null
  kubectl -n "$1" create secret generic search-ca --from-literal=ca.crt=x >/dev/null
  kubectl -n "$1" apply -f - >/dev/null <<CLAIM
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: catalogue},
 spec: {accessModes: [ReadOnlyMany], resources: {requests: {storage: 1Gi}}}}
CLAIM
}
for number in $(seq 12); do
  kubectl apply -f - >/dev/null <<VOLUME
{apiVersion: v1, kind: PersistentVolume, metadata: {name: volume-$number},
 spec: {accessModes: [ReadWriteOnce, ReadWriteMany, ReadOnlyMany],
 capacity: {storage: 100Gi}, hostPath: {path: /none}}}
VOLUME
done

for file in small gpu production; do
  namespace "$file"
  values=(-n "$file" --values "$chart/values-$file.yaml")
  ok "$file: lint" helm lint --strict "$chart" "${values[@]}"
  ok "$file: install" helm install shop "$chart" "${values[@]}" --wait --timeout 120s
  ok "$file: test" helm test shop -n "$file" --timeout 60s
  ok "$file: upgrade to another model" helm upgrade shop "$chart" "${values[@]}" \
    --set settings.generator.model=other,settings.keywords.k_max=20 --wait --timeout 120s
  ok "$file: rollback" helm rollback shop 1 -n "$file" --wait --timeout 120s
  ok "$file: a second release beside it" helm install other "$chart" "${values[@]}" \
    --wait --timeout 120s
  ok "$file: uninstall" helm uninstall shop other -n "$file" --wait
  ok "$file: nothing is left" nothing_left "$file" shop
done

# What kwok plays does not read Secrets: it shows that nothing refuses pods that have to wait for
# theirs.
kubectl create namespace late >/dev/null
kubectl label namespace late pod-security.kubernetes.io/enforce=restricted >/dev/null
late=(-n late -l app.kubernetes.io/instance=shop)
ok "secrets that come late: install" helm install shop "$chart" -n late \
  --values "$chart/values-production.yaml" --set preflight.enabled=false --timeout 60s
ok "its pods are there" sh -c "for i in \$(seq 60); do
  kubectl ${late[*]} get pods -o name | grep -q expander && exit 0; sleep 1; done; exit 1"
ok "none of them could start without" same 0 \
  "$(kubectl "${late[@]}" get pods -o yaml | grep -c 'optional: true')"
ok "uninstall" helm uninstall shop -n late --wait

namespace bad
small=(-n bad --values "$chart/values-small.yaml")
ok "a release to be disturbed" helm install shop "$chart" "${small[@]}" --wait --timeout 120s
before=$(kubectl -n bad get deployment shop-cogr-expander -o jsonpath='{.metadata.generation}')
no "a hook that fails" "failed" helm upgrade shop "$chart" "${small[@]}" \
  --set preflight.enabled=true,podLabels.chart-test=fails,expander.replicas=3 --timeout 60s
ok "it left the release untouched" same "$before" \
  "$(kubectl -n bad get deployment shop-cogr-expander -o jsonpath='{.metadata.generation}')"
ok "the next one's hook takes its place" helm upgrade shop "$chart" "${small[@]}" \
  --set preflight.enabled=true --wait --timeout 120s
# What the release says, not how the time-out is worded: that depends on what Helm was waiting in.
revision=$(revision_of bad shop)
ok "an unschedulable pod is refused" fails helm upgrade shop "$chart" "${small[@]}" \
  --set expander.nodeSelector.none=here --wait --timeout 15s --rollback-on-failure
ok "its revision has failed" same failed "$(status_of bad shop $((revision + 1)))"
ok "a revision after it took it back" same $((revision + 2)) "$(revision_of bad shop)"
ok "nothing of it is left" same "" "$(kubectl -n bad get deployment shop-cogr-expander \
  -o jsonpath='{.spec.template.spec.nodeSelector.none}')"
ok "it was rolled back" kubectl -n bad rollout status deployment/shop-cogr-expander --timeout 60s
cp -rL "$chart" "$work/misspelled"
sed -i 's/enableServiceLinks/enableServiceLink/' "$work/misspelled/templates/_helpers.tpl"
no "a misspelled field" "enableServiceLink" helm upgrade shop "$work/misspelled" \
  "${small[@]}" --timeout 30s
cp -rL "$chart" "$work/root"
sed -i 's/allowPrivilegeEscalation: false/allowPrivilegeEscalation: true/' \
  "$work/root/templates/_helpers.tpl"
helm install rooted "$work/root" "${small[@]}" --timeout 30s >/dev/null 2>&1 || true
ok "restricted refuses a bad pod" sh -c "for i in \$(seq 30); do
  kubectl -n bad get events | grep -q 'violates PodSecurity' && exit 0; sleep 1; done; exit 1"
no "unknown values" "nonsense" helm upgrade shop "$chart" "${small[@]}" --set nonsense=1
ok "uninstall" helm uninstall shop rooted -n bad --wait
ok "nothing is left" nothing_left bad shop

counted
