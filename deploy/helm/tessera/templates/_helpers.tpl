{{/* What every name begins with. */}}
{{- define "tessera.fullname" -}}
{{- if contains "tessera" .Release.Name -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- else -}}{{ printf "%s-tessera" .Release.Name | trunc 40 | trimSuffix "-" }}{{- end -}}
{{- end -}}

{{/* (service, shard): the main shard's is called after the service alone. */}}
{{- define "tessera.ofShard" -}}
{{- $root := index . 0 -}}{{ include "tessera.fullname" $root }}-{{ index . 1 }}{{ if ne (index . 2) "main" }}-{{ index . 2 }}{{ end }}
{{- end -}}

{{/* (root, component): the same in one line. */}}
{{- define "tessera.match" -}}
{app.kubernetes.io/name: tessera, app.kubernetes.io/instance: {{ (index . 0).Release.Name }}, app.kubernetes.io/component: {{ index . 1 }}}
{{- end -}}

{{- define "tessera.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: tessera
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* (root, component): what selects the pods of a part. */}}
{{- define "tessera.selector" -}}
app.kubernetes.io/name: tessera
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/*
The processes of the layout by name: the services that each hosts, and its roles. Values that only a service with a process
of its own can have are refused.
*/}}
{{- define "tessera.processes" -}}
{{- $processes := index (.Files.Get "files/services.yaml" | fromYaml).layouts .Values.layout -}}
{{- range $process, $spec := $processes -}}
{{- range $service := $spec.services -}}
{{- $own := index $.Values.services $service -}}
{{- if and (ne $service $process) (or (ne (int $own.replicas) 2) (ne (default "none" ($own.autoscaling).kind) "none")) -}}
{{- fail (printf "services.%s: in layout %s it shares the process %s, so that replicas and autoscaling cannot be its own; set %s.replicas" $service $.Values.layout $process $process) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $processes -}}
{{- end -}}

{{/* (root, process): its image; another one for logs in an object store. Reclamation's has what all followers need. */}}
{{- define "tessera.image" -}}
{{- $root := index . 0 -}}{{- $image := $root.Values.image -}}{{- $name := index . 1 -}}
{{- if and (eq $name "gateway") $root.Values.gateway.logs.url }}{{ $name = "gateway-logs" }}{{ end -}}
{{- if eq $name "followers" }}{{ $name = "reclamation" }}{{ end -}}
{{- with $image.registry }}{{ . }}/{{ end }}{{ $image.repository }}{{ if $image.perService }}-{{ $name }}{{ end }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ with index $image.digests (ternary $name "all" $image.perService) }}@{{ . }}{{ end }}
{{- end -}}

{{/* The image of the step runner: one of its own, whatever the services have. */}}
{{- define "tessera.stepsImage" -}}
{{- $image := .Values.image -}}
{{- .Values.steps.image | default (printf "%s%s-steps:%s" (ternary "" (printf "%s/" $image.registry) (empty $image.registry)) $image.repository ($image.tag | default .Chart.AppVersion)) -}}
{{- end -}}

{{- define "tessera.tls" -}}
{{- if and .Values.nats.enabled (or .Values.nats.tls.secret .Values.nats.tls.certManager.enabled) }}yes{{ end -}}
{{- end -}}

{{- define "tessera.natsTlsSecret" -}}
{{- .Values.nats.tls.secret | default (printf "%s-nats-tls" (include "tessera.fullname" .)) -}}
{{- end -}}

{{/* The Secret whose ca.crt the services trust; "" is the image's own list. */}}
{{- define "tessera.caSecret" -}}
{{- if include "tessera.tls" . }}{{ include "tessera.natsTlsSecret" . }}{{ else }}{{ .Values.caSecret }}{{ end -}}
{{- end -}}

{{- define "tessera.natsUrl" -}}
{{- if .Values.nats.enabled }}{{ if include "tessera.tls" . }}tls{{ else }}nats{{ end }}://{{ include "tessera.fullname" . }}-nats:4222{{ else }}{{ required "nats.url: name the NATS to use, or set nats.enabled" .Values.nats.url }}{{ end -}}
{{- end -}}

{{- define "tessera.natsMonitorUrl" -}}
{{- if .Values.nats.enabled }}http://{{ include "tessera.fullname" . }}-nats:8222{{ else }}{{ required "nats.monitorUrl: name the monitoring address of the NATS to use" .Values.nats.monitorUrl }}{{ end -}}
{{- end -}}

{{- define "tessera.redisUrl" -}}
{{- if .Values.redis.enabled }}redis://{{ include "tessera.fullname" . }}-redis:6379/0{{ else }}{{ required "redis.url: name the Redis to use, or set redis.enabled" .Values.redis.url }}{{ end -}}
{{- end -}}

{{/* No rights on the node: Pod Security `restricted`. */}}
{{- define "tessera.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "tessera.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "tessera.scheduling" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* (root, component): replicas on different nodes and zones where there are any. */}}
{{- define "tessera.spread" -}}
topologySpreadConstraints:
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ $key }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: {matchLabels: {{ include "tessera.match" $ }}}
  {{- end }}
{{- end -}}

{{/* Where KEDA reads consumer lag: it puts the name of a stream's leader, which is a pod's, before the headless name. */}}
{{- define "tessera.lagEndpoint" -}}
{{- if .Values.nats.enabled }}{{ include "tessera.fullname" . }}-nats-peers.{{ .Release.Namespace }}.svc.cluster.local:8222{{ else }}{{ .Values.nats.monitorUrl | trimPrefix "http://" | trimPrefix "https://" }}{{ end -}}
{{- end -}}

{{/* (url, default): the port of a URL. */}}
{{- define "tessera.portOf" -}}
{{- $host := (urlParse (index . 0)).host -}}
{{- if regexMatch ":[0-9]+$" $host }}{{ regexFind "[0-9]+$" $host }}{{ else }}{{ index . 1 }}{{ end -}}
{{- end -}}

{{/* The processes that call Kubernetes, as a JSON array. */}}
{{- define "tessera.onCluster" -}}
{{- $found := list -}}
{{- range $process, $spec := include "tessera.processes" . | fromYaml -}}
{{- if or $spec.clusterRoles $spec.tenantRole }}{{ $found = append $found $process }}{{ end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}
