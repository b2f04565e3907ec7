{{/* Names are fixed: there is one EvalStop in a cluster (templates/guard.yaml), and pods, taints and Leases are
     known by them. */}}

{{- define "evalstop.common" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/part-of: evalstop
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Labels of a component: (dict "root" $ "name" "evalstop-operator"). */}}
{{- define "evalstop.labels" -}}
app.kubernetes.io/name: {{ .name }}
{{ include "evalstop.common" .root }}
{{- end }}

{{/* The image of a role: (dict "root" $ "role" "operator"). */}}
{{- define "evalstop.image" -}}
{{- $image := get .root.Values.image .role -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "evalstop.extenderUrl" -}}
{{ .Values.extender.url | default (printf "https://evalstop-extender.%s.svc:8443" .Release.Namespace) }}
{{- end }}

{{/* Where trainers and rollout actors find the step API. */}}
{{- define "evalstop.stepsUrl" -}}
{{ .Values.rollouts.url | default (printf "https://evalstop-steps.%s.svc:8446" .Release.Namespace) }}
{{- end }}

{{/* What every pod of ours has: restricted pod security. */}}
{{- define "evalstop.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "evalstop.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Where a component's pods may run: (dict "root" $ "values" .Values.operator "name" "evalstop-operator"). */}}
{{- define "evalstop.placement" -}}
enableServiceLinks: false  # a Service evalstop-… would be a variable EVALSTOP_…, and those are settings
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        app.kubernetes.io/name: {{ .name }}
{{- end }}

{{/* A component's settings as environment variables: (dict "prefix" "EVALSTOP_" "settings" .Values.operator.settings). */}}
{{- define "evalstop.settings" -}}
{{- range $name, $value := .settings }}
- name: {{ $.prefix }}{{ $name | snakecase | upper }}
  {{- if kindIs "float64" $value }}
  value: {{ include "evalstop.number" $value | quote }}
  {{- else }}
  value: {{ $value | toString | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Numbers come as floats; a large whole one would be written 1e+06. */}}
{{- define "evalstop.number" -}}
{{- if eq (float64 (int64 .)) . }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end }}

{{- define "evalstop.podIp" -}}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- end }}

{{/* The pod's name, address and namespace. */}}
{{- define "evalstop.podEnv" -}}
{{ include "evalstop.podIp" . }}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_UID  # the holder in the Lease: a container that starts again in its pod need not wait
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- end }}

{{- define "evalstop.disruption" -}}
{{- if gt (int .values.replicas) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "evalstop.labels" (dict "root" .root "name" .name) | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      app.kubernetes.io/name: {{ .name }}
{{- end }}
{{- end }}

{{- define "evalstop.schedulerConfig" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
# With sampling, the planned node would be among those that the extender is asked about only by chance.
percentageOfNodesToScore: 100
# A gang whose last member backs off for ten seconds is a gang that waits ten seconds.
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 2
clientConnection:
  qps: {{ include "evalstop.number" .Values.scheduler.qps }}
  burst: {{ mulf .Values.scheduler.qps 2 | int }}
leaderElection:
  leaderElect: true
  resourceName: evalstop-scheduler
  resourceNamespace: {{ .Release.Namespace }}
profiles:
  - schedulerName: evalstop-scheduler
extenders:
  - {{- include "evalstop.extenderStanza" (dict "root" . "tls" (dict "caFile" "/tls/ca.crt" "certFile" "/tls/tls.crt" "keyFile" "/tls/tls.key")) | nindent 4 }}
{{- end }}

{{/* One entry of `extenders`: (dict "root" $ "tls" (dict …)). */}}
{{- define "evalstop.extenderStanza" -}}
urlPrefix: {{ include "evalstop.extenderUrl" .root }}
filterVerb: filter
prioritizeVerb: prioritize
preemptVerb: preempt
weight: {{ .root.Values.extender.weight }}
enableHTTPS: true
tlsConfig: {{- toYaml .tls | nindent 2 }}
httpTimeout: {{ int .root.Values.extender.timeoutMilliseconds }}ms
nodeCacheCapable: true
ignorable: {{ .root.Values.extender.ignorable }}
{{- end }}

{{/* How a component serves its metrics: (dict "root" $ "prefix" "EVALSTOP_"). */}}
{{- define "evalstop.metricsEnv" -}}
- name: {{ .prefix }}METRICS_PORT
  value: "8444"
- name: {{ .prefix }}METRICS_ACCESS
  value: {{ .root.Values.metrics.access }}
{{- if eq .root.Values.metrics.access "review" }}
- name: {{ .prefix }}METRICS_CERTIFICATE
  value: /metrics-tls/tls.crt
- name: {{ .prefix }}METRICS_KEY
  value: /metrics-tls/tls.key
{{- end }}
{{- end }}

{{- define "evalstop.metricsMount" }}
{{- if eq .Values.metrics.access "review" -}}
- name: metrics-tls
  mountPath: /metrics-tls
  readOnly: true
{{- end }}
{{- end }}

{{- define "evalstop.metricsVolume" }}
{{- if eq .Values.metrics.access "review" -}}
- name: metrics-tls
  secret: {secretName: evalstop-metrics-tls}
{{- end }}
{{- end }}

{{/* Rights to ask who wants to read metrics, and whether they may: (dict "root" $ "steps" true). steps: the component
     serves the step API, which asks whose pod a token is. */}}
{{- define "evalstop.metricsRules" }}
{{- $review := eq .root.Values.metrics.access "review" }}
{{- if or $review .steps -}}
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]  # who wants to read metrics; whose pod asks the step API
{{- end }}
{{- if $review }}
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]  # whether they may
{{- end }}
{{- end }}

{{/* Egress rules of NetworkPolicies. */}}

{{- define "evalstop.toApiServer" }}
# The API server has no pods that a selector could name: its addresses, by the values or as the cluster tells them.
- to:
    {{- range include "evalstop.apiServerAddresses" . | fromJsonArray }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  ports:
    {{- range .Values.networkPolicy.apiServerPorts }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- end }}
{{/* As networks see it before and after they have translated the Service's address. */}}
{{- define "evalstop.apiServerAddresses" -}}
{{- $found := .Values.networkPolicy.apiServerAddresses }}
{{- if not $found }}
{{- $ips := list }}
{{- $service := lookup "v1" "Service" "default" "kubernetes" }}
{{- if $service }}{{ $ips = concat $ips ($service.spec.clusterIPs | default (list $service.spec.clusterIP)) }}{{ end }}
{{- range (lookup "discovery.k8s.io/v1" "EndpointSlice" "default" "").items }}
{{- if eq (index (.metadata.labels | default dict) "kubernetes.io/service-name" | default "") "kubernetes" }}
{{- range .endpoints }}{{ $ips = concat $ips .addresses }}{{ end }}
{{- end }}
{{- end }}
{{- range $ips | uniq | sortAlpha }}{{ $found = append $found (printf "%s/%s" . (ternary "128" "32" (contains ":" .))) }}{{ end }}
{{- end }}
{{- if not $found }}
{{- fail "networkPolicy.apiServerAddresses is empty, and there is no cluster to ask where its API server is (helm template asks none): name its addresses, such as {10.96.0.1/32,192.0.2.10/32} (kubectl -n default get service,endpointslices), or set networkPolicy.enabled to false." }}
{{- end }}
{{- toJson $found }}
{{- end }}
{{- define "evalstop.dns" }}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
{{- end }}
