{{- define "cogr.fullname" -}}
{{- /* 38: a CronJob's name, with -rebuild-query, may have 52 characters. */}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 38 | trimSuffix "-" }}
{{- else }}{{ $name := default .Chart.Name .Values.nameOverride }}
{{- $both := printf "%s-%s" .Release.Name $name }}
{{- ternary .Release.Name $both (contains $name .Release.Name) | trunc 38 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "cogr.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- with .component }}
app.kubernetes.io/component: {{ . | quote }}
{{- end }}
{{- end }}

{{- define "cogr.labels" -}}
{{ include "cogr.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | quote }}
{{- end }}

{{/* metadata of one object: dict root component name annotations */}}
{{- define "cogr.metadata" -}}
name: {{ list (include "cogr.fullname" .root) .name | compact | join "-" | quote }}
namespace: {{ .root.Release.Namespace | quote }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
labels:
  {{- merge (include "cogr.labels" . | fromYaml) .root.Values.commonLabels | toYaml | nindent 2 }}
{{- end }}

{{- define "cogr.image" -}}
{{- $image := .image -}}
{{- with .root.Values.image.registry }}{{ . }}/{{ end }}{{ $image.repository }}
{{- $tag := $image.tag | default .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}

{{- define "cogr.serviceAccountName" -}}
{{- $own := (get .root.Values .component | default dict).serviceAccount | default dict -}}
{{- if $own.name }}{{ $own.name }}
{{- else if $own.create }}{{ include "cogr.fullname" .root }}-{{ .component }}
{{- else }}default{{ end }}
{{- end }}

{{- define "cogr.storeIsFolder" -}}
{{- if hasPrefix "/" .Values.settings.store }}true{{ end }}
{{- end }}

{{- define "cogr.storeClaim" -}}
{{- .Values.store.existingClaim | default (printf "%s-store" (include "cogr.fullname" .)) }}
{{- end }}

{{/* A table of settings as TOML: values first, then tables, as TOML wants them. dict path
     values */}}
{{- define "cogr.toml" -}}
{{- $path := .path -}}
{{- range $key, $value := .values }}
{{- $unset := or (kindIs "invalid" $value) (and (kindIs "string" $value) (eq $value "")) }}
{{- if not (or (kindIs "map" $value) $unset) }}
{{ $key | toJson }} = {{ $value | toJson }}
{{- end }}
{{- end }}
{{- range $key, $value := .values }}
{{- if and (kindIs "map" $value) (gt (len $value) 0) }}
{{- $inner := append $path ($key | toJson) }}

[{{ join "." $inner }}]
{{- include "cogr.toml" (dict "path" $inner "values" $value) }}
{{- end }}
{{- end }}
{{- end }}

{{/* What cogr.toml holds: the settings, and the chart's own vLLM where it has one */}}
{{- define "cogr.config" -}}
{{- $settings := deepCopy .Values.settings }}
{{- if .Values.vllm.enabled }}
{{- $host := printf "%s-vllm.%s.svc" (include "cogr.fullname" .) .Release.Namespace }}
{{- $url := printf "http://%s:%d/v1" $host (int .Values.vllm.port) }}
{{- $_ := mergeOverwrite $settings (dict "generator" (dict "openai" (dict "base_url" $url))) }}
{{- end }}
{{- include "cogr.toml" (dict "path" list "values" $settings) | trim }}
{{- end }}

{{/* Which secret settings a component's commands read */}}
{{- define "cogr.secretsOf" -}}
{{- $redis := "redis.url redis.password" }}
{{- if eq . "worker" }}{{ $redis }} generator.openai.api_key
{{- else if eq . "training" }}opensearch.password
{{- else }}{{ $redis }} opensearch.password generator.openai.api_key
{{- if eq . "expander" }} serving.token{{ end }}
{{- end }}
{{- end }}

{{/* env: dict root component extraEnv */}}
{{- define "cogr.env" -}}
- {name: HOME, value: /tmp}
- {name: COGR_CACHE_DIR, value: /cache}
- {name: HF_HOME, value: /cache/huggingface}
{{- $secrets := .root.Values.secretSettings }}
{{- range $setting := splitList " " (include "cogr.secretsOf" .component) }}
{{- with get $secrets $setting }}
- name: COGR_{{ $setting | replace "." "__" | upper }}
  valueFrom:
    secretKeyRef:
      name: {{ .name | quote }}
      key: {{ .key | quote }}
{{- end }}
{{- end }}
{{- if has .component (list "jobs" "training") }}
{{- with .root.Values.monitoring.pushgateway }}
- {name: COGR_METRICS__PUSHGATEWAY, value: {{ . | quote }}}
{{- end }}
{{- end }}
{{- include "cogr.extraEnv" (dict "root" .root "own" .extraEnv) }}
{{- end }}

{{/* More variables: a component's own replace those of all pods. dict root own */}}
{{- define "cogr.extraEnv" -}}
{{- $own := .own | default list }}
{{- $names := list }}
{{- range $own }}{{ $names = append $names .name }}{{ end }}
{{- range .root.Values.extraEnv }}
{{- if not (has .name $names) }}
{{ list . | toYaml }}
{{- end }}
{{- end }}
{{- with $own }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What the pods of every component share. dict root component of (the values that place
     it) spec (more of them) */}}
{{- define "cogr.podSpec" -}}
{{- $root := .root -}}
{{- $account := include "cogr.serviceAccountName" (dict "root" $root "component" .component) -}}
serviceAccountName: {{ $account | quote }}
automountServiceAccountToken: false
# A Service named cogr-... would put COGR_... variables into the pods, which are refused as unknown
# settings.
enableServiceLinks: false
# The first process of a namespace ignores SIGTERM unless it handles it; the pause container is that
# one then.
shareProcessNamespace: true
securityContext:
  {{- $own := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") }}
  {{- mergeOverwrite $own ($root.Values.podSecurityContext | default dict) | toYaml | nindent 2 }}
terminationGracePeriodSeconds: {{ .of.terminationGracePeriodSeconds | toJson }}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .of.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .of.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "cogr.spread" -}}
topologySpreadConstraints:
{{- if .of.topologySpreadConstraints }}
  {{- toYaml .of.topologySpreadConstraints | nindent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "cogr.selector" . | nindent 8 }}
{{- end }}
{{- end }}

{{- define "cogr.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* dict root configMap sharedMemory storeReadOnly */}}
{{- define "cogr.volumes" -}}
- name: config
  configMap: {name: {{ .configMap | default (include "cogr.fullname" .root) | quote }}}
- name: tmp
  emptyDir: {sizeLimit: {{ .root.Values.scratch.tmp | quote }}}
- name: cache
  emptyDir: {sizeLimit: {{ .root.Values.scratch.cache | quote }}}
{{- if and (include "cogr.storeIsFolder" .root) (not .noStore) }}
- name: store
  persistentVolumeClaim: {claimName: {{ include "cogr.storeClaim" .root | quote }}}
{{- end }}
{{- with ternary "" .root.Values.data.existingClaim (.noStore | default false) }}
- name: data
  persistentVolumeClaim: {claimName: {{ . | quote }}, readOnly: true}
{{- end }}
{{- with .root.Values.certificates.secretName }}
- name: tls
  secret: {secretName: {{ . | quote }}}
{{- end }}
{{- with .root.Values.certificates.configMapName }}
- name: tls
  configMap: {name: {{ . | quote }}}
{{- end }}
{{- with .root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- with .sharedMemory }}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ . | quote }}}
{{- end }}
{{- end }}

{{- define "cogr.volumeMounts" -}}
- {name: config, mountPath: /etc/cogr/cogr.toml, subPath: cogr.toml, readOnly: true}
- {name: tmp, mountPath: /tmp}
- {name: cache, mountPath: /cache}
{{- if and (include "cogr.storeIsFolder" .root) (not .noStore) }}
{{- $place := printf "mountPath: %q" .root.Values.settings.store }}
- {name: store, {{ $place }}{{ if .storeReadOnly }}, readOnly: true{{ end }}}
{{- end }}
{{- if and .root.Values.data.existingClaim (not .noStore) }}
- {name: data, mountPath: {{ .root.Values.data.mountPath | quote }}, readOnly: true}
{{- end }}
{{- if or .root.Values.certificates.secretName .root.Values.certificates.configMapName }}
- {name: tls, mountPath: /etc/cogr/tls, readOnly: true}
{{- end }}
{{- with .root.Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- if .sharedMemory }}
- {name: shm, mountPath: /dev/shm}
{{- end }}
{{- end }}

{{/* One container. dict root component of name image args (with the command first) resources
     sharedMemory storeReadOnly extra (YAML) */}}
{{- define "cogr.container" -}}
- name: {{ .name | quote }}
  image: {{ include "cogr.image" (dict "root" .root "image" .image) | quote }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy | quote }}
  command: {{ list (first .args) | toJson }}
  args:
    {{- range rest .args }}
    - {{ . | toString | quote }}
    {{- end }}
  env:
    {{- $env := dict "root" .root "component" .component "extraEnv" .of.extraEnv }}
    {{- include "cogr.env" $env | nindent 4 }}
  resources:
    {{- toYaml .resources | nindent 4 }}
  securityContext:
    {{- include "cogr.securityContext" . | nindent 4 }}
  volumeMounts:
    {{- include "cogr.volumeMounts" . | nindent 4 }}
  {{- with .extra }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* Annotations of a pod: a changed configuration starts new pods */}}
{{- define "cogr.podAnnotations" -}}
checksum/config: {{ include "cogr.config" .root | sha256sum }}
{{- with merge (dict) .of.podAnnotations .root.Values.commonAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "cogr.podLabels" -}}
{{ merge (include "cogr.selector" . | fromYaml) .root.Values.podLabels .root.Values.commonLabels | toYaml }}
{{- end }}

{{/* The generator of a side, with the side's own values put in, as JSON. dict root side */}}
{{- define "cogr.generatorOf" -}}
{{- $generator := .root.Values.settings.generator | default dict -}}
{{- $own := get $generator .side | default dict -}}
{{- $name := $own.name | default $generator.name | default "auto" -}}
{{- dict "name" $name "model" ($own.model | default $generator.model | default "") | toJson }}
{{- end }}

{{/* The broker's list of a side's shards, as indexers.rebuild.fleet.broker names it: the form of
     messages (test_templates.py compares), side, generator, model */}}
{{- define "cogr.queueOf" -}}
{{- $generator := include "cogr.generatorOf" . | fromJson -}}
{{- $digest := $generator.model | sha256sum | trunc 8 -}}
cogr:afb1472f.{{ .side }}.{{ $generator.name }}.{{ $digest }}
{{- end }}

{{/* Whether a model is fetched from the Hugging Face hub: a name, not a folder, of what loads it
     itself */}}
{{- define "cogr.fetchesModels" -}}
{{- $s := .Values.settings }}
{{- $names := list (dig "generator" "statistical" "encoder" "" $s) }}
{{- range $side := list "item" "query" }}
{{- $generator := include "cogr.generatorOf" (dict "root" $ "side" $side) | fromJson }}
{{- if has $generator.name (list "vllm" "transformers") }}
{{- $names = append $names $generator.model }}
{{- end }}
{{- end }}
{{- if has (dig "generator" "statistical" "judge" "" $s) (list "vllm" "transformers") }}
{{- $names = append $names (dig "generator" "model" "" $s) }}
{{- end }}
{{- if .Values.training.enabled }}{{ $names = append $names (dig "training" "model" "" $s) }}{{ end }}
{{- if .Values.vllm.enabled }}{{ $names = append $names .Values.vllm.model }}{{ end }}
{{- range compact $names }}
{{- if regexMatch "^[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9_.-]+$" . }}true{{ end }}
{{- end }}
{{- end }}

{{- define "cogr.workerSides" -}}
{{- .Values.worker.sides | default (list "item" "query") | join " " }}
{{- end }}

{{/* GPUs that a worker asks for */}}
{{- define "cogr.gpusOf" -}}
{{- $limits := .limits | default dict -}}
{{- get $limits "nvidia.com/gpu" | default (get $limits "amd.com/gpu") | default 0 }}
{{- end }}

{{/* The port that a URL names or means: dict url default */}}
{{- define "cogr.portOf" -}}
{{- /* Not by urlParse, which fails with the whole URL, a password in it too. */}}
{{- $host := regexReplaceAll "(?s)[/?#].*" (regexReplaceAll "^[a-zA-Z0-9+.-]*://" .url "") "" -}}
{{- if regexMatch ":[0-9]+$" $host }}{{ regexFind "[0-9]+$" $host }}
{{- else if .default }}{{ .default }}
{{- else }}{{ ternary 443 80 (hasPrefix "https" .url) }}{{ end }}
{{- end }}

{{- define "cogr.hpa" -}}
{{- $percentage := .of.hpa.targetCPUUtilizationPercentage | toJson -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "cogr.metadata" . | nindent 2 }}
spec:
  {{- $name := printf "%s-%s" (include "cogr.fullname" .root) .component }}
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ $name | quote }}}
  minReplicas: {{ .of.hpa.minReplicas | toJson }}
  maxReplicas: {{ .of.hpa.maxReplicas | toJson }}
  metrics:
    - type: Resource
      resource: {name: cpu, target: {type: Utilization, averageUtilization: {{ $percentage }}}}
{{- end }}

{{/* The port of workers and jobs for scrapes, as a container has it; nothing when it is off */}}
{{- define "cogr.metricsPort" -}}
{{- with dig "metrics" "port" 0 .Values.settings | int -}}
ports: [{name: metrics, containerPort: {{ . }}}]
{{- end }}
{{- end }}
