#!/usr/bin/env bash
# A Kubernetes API server without containers: etcd, apiserver, controller-manager and scheduler (one
# binary), and kwok, which plays the node. Loopback only, a token of its own; what it started it
# ends by saved process ids.
#   BINARIES=folder STATE=folder cluster.sh up|down
set -euo pipefail
: "${BINARIES:?folder of the binaries}" "${STATE:?folder for the state}"
here=$(cd "$(dirname "$0")" && pwd)
etcd=${ETCD_PORT:-23790} api=${API_PORT:-26443} kwok=${KWOK_PORT:-20247}

down() {
  [ -f "$STATE/pids" ] || return 0
  tac "$STATE/pids" | while read -r pid name; do
    kill "$pid" 2>/dev/null || continue
    for _ in $(seq 150); do kill -0 "$pid" 2>/dev/null || break; sleep .1; done
    ! kill -0 "$pid" 2>/dev/null || { echo "kill -9 $name" >&2; kill -9 "$pid"; }
  done
  rm -f "$STATE/pids"
}

start() {  # start NAME COMMAND...
  local name=$1; shift
  nohup "$@" >"$name.log" 2>&1 &
  echo "$! $name" >>pids
}

[ "$1" = up ] || { down; exit 0; }
mkdir -p "$STATE"; cd "$STATE"
# kwok's own stages, as its module carries them, and ours.
own=$(cd "$here" && go list -m -f '{{.Dir}}' sigs.k8s.io/kwok)/kustomize/stage
for file in "$own"/node/fast/node-initialize.yaml \
  "$own"/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml \
  "$own"/pod/fast/pod-{ready,complete,delete}.yaml "$here/stages.yaml"; do
  cat "$file"
  echo "---"
done >stages.yaml
token=$(openssl rand -hex 16)
(umask 077; echo "$token,admin,admin,system:masters" >tokens.csv)
openssl genrsa -out sa.key 2048 2>/dev/null; openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null
start etcd "$BINARIES/testkube" etcd --data-dir "$STATE/etcd" --unsafe-no-fsync --log-level warn \
  --initial-cluster "default=http://127.0.0.1:$((etcd + 1))" \
  --listen-client-urls "http://127.0.0.1:$etcd" --advertise-client-urls "http://127.0.0.1:$etcd" \
  --listen-peer-urls "http://127.0.0.1:$((etcd + 1))" \
  --initial-advertise-peer-urls "http://127.0.0.1:$((etcd + 1))"
start apiserver "$BINARIES/testkube" apiserver --etcd-servers "http://127.0.0.1:$etcd" \
  --bind-address 127.0.0.1 --advertise-address 127.0.0.1 \
  --endpoint-reconciler-type none --secure-port "$api" --cert-dir "$STATE/certs" \
  --token-auth-file tokens.csv --authorization-mode RBAC \
  --service-cluster-ip-range 10.0.0.0/24 --service-account-issuer https://kubernetes.default.svc \
  --service-account-key-file sa.pub --service-account-signing-key-file sa.key
cat >kubeconfig <<K
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:$api",
  certificate-authority: $STATE/certs/apiserver.crt}}]
users: [{name: u, user: {token: $token}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
K
export KUBECONFIG=$STATE/kubeconfig
kubectl=$BINARIES/kubectl
for _ in $(seq 240); do "$kubectl" get --raw /readyz >/dev/null 2>&1 && break; sleep .25; done
"$kubectl" get --raw /readyz >/dev/null || { tail "$STATE"/*.log; down; exit 1; }
start controllers "$BINARIES/testkube" controller-manager --kubeconfig kubeconfig \
  --service-account-private-key-file sa.key --root-ca-file "$STATE/certs/apiserver.crt" \
  --use-service-account-credentials --leader-elect=false --secure-port 0
start scheduler "$BINARIES/testkube" scheduler --kubeconfig kubeconfig \
  --leader-elect=false --secure-port 0
start kwok "$BINARIES/kwok" --kubeconfig kubeconfig --manage-all-nodes=true \
  --node-lease-duration-seconds 40 --server-address "127.0.0.1:$kwok" \
  --config "$STATE/stages.yaml"
"$kubectl" apply -f - <<N
apiVersion: v1
kind: Node
metadata: {name: fake-0, annotations: {kwok.x-k8s.io/node: fake},
  labels: {kubernetes.io/hostname: fake-0, type: kwok}}
status: {allocatable: {cpu: "256", memory: 4096Gi, pods: "200", nvidia.com/gpu: "64"},
  capacity: {cpu: "256", memory: 4096Gi, pods: "200", nvidia.com/gpu: "64"}}
N
"$kubectl" wait --for=condition=Ready node/fake-0 --timeout=60s
for _ in $(seq 100); do
  "$kubectl" get serviceaccount default >/dev/null 2>&1 && break
  sleep .1
done
