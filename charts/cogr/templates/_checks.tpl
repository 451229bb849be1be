{{/* Combinations that can't work, each refused in one sentence that names the value. Types
     and unknown keys are the schema's. */}}
{{- define "cogr.checks" -}}
{{- $v := .Values }}
{{- include "cogr.noPasswords" (dict "path" "settings" "values" $v.settings) }}
{{- $addresses := pick $v.monitoring "pushgateway" }}
{{- include "cogr.noPasswords" (dict "path" "monitoring" "values" $addresses) }}
{{- if and $v.worker.enabled (not $v.settings.redis.url) }}
{{- fail (print
  "worker.enabled needs settings.redis.url: workers get their shards from Redis or Valkey; set "
  "it, or set worker.enabled=false.") }}
{{- end }}
{{- if and $v.worker.keda.enabled $v.worker.hpa.enabled }}
{{- fail (print
  "worker.keda.enabled and worker.hpa.enabled exclude each other: two autoscalers would fight "
  "over one Deployment; switch one off.") }}
{{- end }}
{{- range $name := list "worker" "expander" }}
{{- $hpa := (get $v $name).hpa }}
{{- if and $hpa.enabled (gt (int $hpa.minReplicas) (int $hpa.maxReplicas)) }}
{{- fail (printf "%s.hpa.minReplicas (%d) is above %s.hpa.maxReplicas (%d)."
  $name (int $hpa.minReplicas) $name (int $hpa.maxReplicas)) }}
{{- end }}
{{- end }}
{{- $keda := $v.worker.keda }}
{{- if and $keda.enabled (gt (int $keda.minReplicas) (int $keda.maxReplicas)) }}
{{- fail (printf "worker.keda.minReplicas (%d) is above worker.keda.maxReplicas (%d)."
  (int $v.worker.keda.minReplicas) (int $v.worker.keda.maxReplicas)) }}
{{- end }}
{{- if $v.worker.enabled }}
{{- range $side := splitList " " (include "cogr.workerSides" $) }}
{{- $generator := include "cogr.generatorOf" (dict "root" $ "side" $side) | fromJson }}
{{- if and $v.worker.keda.enabled (eq $generator.name "auto") }}
{{- fail (print
  "worker.keda.enabled needs settings.generator.name: the queue is named after the generator, and "
  "auto is decided when the catalogue is read; name the generator.") }}
{{- end }}
{{- if eq $generator.name "vllm" }}
{{- $gpus := include "cogr.gpusOf" $v.worker.resources | int }}
{{- $parallel := (dig "vllm" "tensor_parallel_size" 1 ($v.settings.generator | default dict)) | int }}
{{- if eq $gpus 0 }}
{{- fail (print
  "worker.resources.limits has no GPU, but settings.generator.name is vllm: set "
  "worker.resources.limits.nvidia\\.com/gpu.") }}
{{- else if ne $gpus $parallel }}
{{- fail (printf (print
    "worker.resources.limits gives a worker %d GPUs, but "
    "settings.generator.vllm.tensor_parallel_size is %d: an engine takes exactly that many.")
  $gpus $parallel) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if and $v.expander.enabled $v.expander.pdb.enabled }}
{{- $hpa := $v.expander.hpa }}
{{- $replicas := ternary $hpa.minReplicas $v.expander.replicas $hpa.enabled | int }}
{{- if lt $replicas 1 }}
{{- fail (print
  "expander.pdb.enabled with expander.replicas=0: there is nothing to protect; set "
  "expander.enabled=false, or at least one replica.") }}
{{- end }}
{{- end }}
{{- if and $v.expander.route.enabled (not $v.expander.route.parentRefs) }}
{{- fail (print
  "expander.route.enabled needs expander.route.parentRefs: the gateway that the route belongs "
  "to.") }}
{{- end }}
{{- if and $v.expander.ingress.enabled (not $v.expander.ingress.hosts) }}
{{- fail "expander.ingress.enabled needs expander.ingress.hosts." }}
{{- end }}
{{- range $what := list "rebuild" "update" }}
{{- range $side, $job := get $v $what }}
{{- if and $job.enabled $job.publish (not $v.settings.opensearch.url) }}
{{- fail (printf (print
    "%s.%s.publish needs settings.opensearch.url: there is no cluster to publish to; set "
    "it, or set %s.%s.publish=false.")
  $what $side $what $side) }}
{{- end }}
{{- if and $job.enabled (eq ($job.workers | default "") "celery") (not $v.settings.redis.url) }}
{{- fail (printf (print
    "%s.%s.workers=celery needs settings.redis.url; "
    "set it, or set %s.%s.workers=local.")
  $what $side $what $side) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $side, $job := $v.update }}
{{- if $job.enabled }}
{{- $since := ternary "since" "" (gt (int $job.sinceDays) 0) }}
{{- $ways := compact (list $since $job.changedFile) }}
{{- if ne (len $ways) 1 }}
{{- fail (printf (print
    "update.%s takes exactly one of sinceDays and changedFile (sinceDays=0 "
    "leaves it out); %d are set.")
  $side (len $ways)) }}
{{- end }}
{{- end }}
{{- end }}
{{- if $v.training.enabled }}
{{- if not (include "cogr.storeIsFolder" .) }}
{{- fail (printf (print
    "training.enabled needs a folder as settings.store (given: %s): a run's lock and "
    "checkpoints lie on a volume; name a path such as /var/lib/cogr.")
  $v.settings.store) }}
{{- end }}
{{- if and $v.training.publish (not $v.settings.opensearch.url) }}
{{- fail (print
  "training.publish needs settings.opensearch.url: there is no cluster to publish to; set it, or "
  "set training.publish=false.") }}
{{- end }}
{{- $processes := dig "training" "processes" 1 $v.settings | int }}
{{- if and (gt $processes 1) (lt (int $v.training.gpus) $processes) }}
{{- fail (printf (print
    "settings.training.processes is %d, but training.gpus is %d: each process takes a "
    "GPU.")
  $processes (int $v.training.gpus)) }}
{{- end }}
{{- end }}
{{- if $v.vllm.enabled }}
{{- if dig "generator" "openai" "base_url" "" $v.settings }}
{{- fail (print
  "vllm.enabled and settings.generator.openai.base_url exclude each other: the chart's own server "
  "is the endpoint, or yours is.") }}
{{- end }}
{{- if not $v.vllm.model }}
{{- fail "vllm.enabled needs vllm.model: a folder or a Hugging Face name." }}
{{- end }}
{{- if lt (int $v.vllm.gpus) 1 }}
{{- fail "vllm.enabled needs vllm.gpus of at least 1." }}
{{- end }}
{{- end }}
{{- $samePlace := eq $v.data.mountPath $v.settings.store }}
{{- if and $v.data.existingClaim (include "cogr.storeIsFolder" .) $samePlace }}
{{- fail (printf (print
    "data.mountPath and settings.store are both %s: two volumes can't be mounted at one "
    "place.")
  $v.settings.store) }}
{{- end }}
{{- if and $v.certificates.secretName $v.certificates.configMapName }}
{{- fail (print
  "certificates.secretName and certificates.configMapName exclude each other: both would lie at "
  "/etc/cogr/tls.") }}
{{- end }}
{{- if and $v.fill.enabled (not (dig "serving" "into" "index" "" $v.settings)) }}
{{- fail (print
  "fill.enabled needs settings.serving.into.index: the index of yours whose field it fills.") }}
{{- end }}
{{- $everywhere := dict "extraEnv" (dict "extraEnv" $v.extraEnv) }}
{{- range $component := list "worker" "expander" "jobs" "extraEnv" }}
{{- $of := get $everywhere $component | default (get $v $component) }}
{{- range $of.extraEnv }}
{{- if hasPrefix "COGR_" .name }}
{{- fail (printf "%s has %s: settings belong to settings, secret ones to secretSettings."
  (ternary "extraEnv" (printf "%s.extraEnv" $component) (eq $component "extraEnv")) .name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Everybody who may read ConfigMaps reads the settings: no URL with a password in it.
     Never prints the value. */}}
{{- define "cogr.noPasswords" -}}
{{- $path := .path }}
{{- range $key, $value := .values }}
{{- $name := printf "%s.%s" $path $key }}
{{- if kindIs "map" $value }}
{{- include "cogr.noPasswords" (dict "path" $name "values" $value) }}
{{- else }}
{{- range $one := ternary $value (list $value) (kindIs "slice" $value) }}
{{- if and (kindIs "string" $one) (regexMatch "(?s)//.*@" $one) }}
{{- fail (printf (print
    "%s has a user or a password in its URL, which would lie in a ConfigMap: take it out, "
    "set the user's own setting, and name the password's Secret in secretSettings.")
  $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
