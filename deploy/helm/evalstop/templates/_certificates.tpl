{{/* The certificates that this release needs, as YAML: Secret -> {usage, names, addresses}. */}}
{{- define "evalstop.leaves" -}}
{{- $space := .Release.Namespace }}
{{- if or .Values.extender.enabled .Values.scheduler.enabled }}
{{ dict "evalstop-extender-tls" (include "evalstop.serverLeaf" (dict "root" . "service" "evalstop-extender" "url" (include "evalstop.extenderUrl" .)) | fromYaml) | toYaml }}
{{ dict "evalstop-scheduler-tls" (dict "usage" "client auth" "names" (list "evalstop-scheduler")) | toYaml }}
{{- end }}
{{- if .Values.rollouts.enabled }}
{{ dict "evalstop-steps-tls" (include "evalstop.serverLeaf" (dict "root" . "service" "evalstop-steps" "url" (include "evalstop.stepsUrl" .)) | fromYaml) | toYaml }}
{{- end }}
{{- if eq .Values.metrics.access "review" }}
{{ dict "evalstop-metrics-tls" (dict "usage" "server auth" "names" (list (printf "evalstop-operator.%s.svc" $space) (printf "evalstop-extender.%s.svc" $space))) | toYaml }}
{{- end }}
{{- end }}

{{/* The certificate of a server, as YAML: {usage, names, addresses}; for its Service, the host of its address, and
     those that the values name: (dict "root" $ "service" "evalstop-extender" "url" "https://…"). */}}
{{- define "evalstop.serverLeaf" -}}
{{- $space := .root.Release.Namespace }}
{{- $host := regexReplaceAll ":[0-9]+$" (urlParse .url).host "" | trimPrefix "[" | trimSuffix "]" }}
{{- $own := list .service (printf "%s.%s" .service $space) (printf "%s.%s.svc" .service $space) (printf "%s.%s.svc.cluster.local" .service $space) }}
{{- $names := list }}
{{- $addresses := list }}
{{- range concat $own .root.Values.extender.certificates.hosts (list $host) | uniq }}
{{- if or (regexMatch "^[0-9.]+$" .) (contains ":" .) }}{{ $addresses = append $addresses . }}{{ else }}{{ $names = append $names . }}{{ end }}
{{- end }}
{{- dict "usage" "server auth" "names" $names "addresses" $addresses | toYaml }}
{{- end }}

{{/* What `generate` makes, or found and keeps, as YAML: {secrets: {name: {annotations, data}}, authority}.

     An authority of its own: with the cluster's, every user with a client certificate could ask. It is made to sign
     these certificates and its key is then forgotten: nobody can sign another one, neither from a pod nor from Helm's
     record of the release. Renewed are all together, under a new authority; what was vouched for by the one before is
     believed until the next time, so that pods may restart one after the other. All templates see the same. */}}
{{- define "evalstop.certificates" -}}
{{- $given := .Values.extender.certificates }}
{{- if not (hasKey $given "made") }}
{{- $leaves := include "evalstop.leaves" . | fromYaml }}
{{- $space := .Release.Namespace }}
{{- $now := now | unixEpoch | int64 }}
{{- $days := int $given.days }}
{{- $known := dict }}
{{- $new := false }}
{{- $before := "" }}
{{- range $name, $leaf := $leaves }}
{{- $found := lookup "v1" "Secret" $space $name }}
{{- $hosts := concat $leaf.names ($leaf.addresses | default list) | join "," }}
{{- if $found }}
{{- $notes := $found.metadata.annotations | default dict }}
{{- $left := sub (index $notes "evalstop.dev/not-after" | default "0" | int64) $now }}
{{- $new = or $new (lt (mul $left 3) (mul $days 86400)) (ne (index $notes "evalstop.dev/hosts" | default "") $hosts) }}
{{- $before = index $found.data "ca.crt" | b64dec | regexFind "(?s)^-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\\n?" }}
{{- $_ := set $known $name (dict "annotations" (pick $notes "evalstop.dev/hosts" "evalstop.dev/not-after") "data" $found.data) }}
{{- else }}
{{- $new = true }}
{{- end }}
{{- end }}
{{- if $new }}
{{- /* On a curve: to find primes for RSA was half of what a `helm template` takes. */}}
{{- $ca := genCAWithKey "evalstop-extender-ca" 3650 (genPrivateKey "ecdsa") }}
{{- range $name, $leaf := $leaves }}
{{- $addresses := $leaf.addresses | default list }}
{{- $pair := genSignedCertWithKey (trimSuffix "-tls" $name) $addresses $leaf.names $days $ca (genPrivateKey "ecdsa") }}
{{- $notes := dict "evalstop.dev/hosts" (concat $leaf.names $addresses | join ",") "evalstop.dev/not-after" (add $now (mul $days 86400) | toString) }}
{{- $data := dict "ca.crt" (b64enc (printf "%s%s" $ca.Cert $before)) "tls.crt" (b64enc $pair.Cert) "tls.key" (b64enc $pair.Key) }}
{{- $_ := set $known $name (dict "annotations" $notes "data" $data) }}
{{- end }}
{{- end }}
{{- $authority := "" }}
{{- range $name, $secret := $known }}{{ $authority = index $secret.data "ca.crt" | sha256sum | trunc 16 }}{{ end }}
{{- $_ := set $given "made" (dict "secrets" $known "authority" $authority | toYaml) }}
{{- end }}
{{- $given.made }}
{{- end }}

{{/* An annotation that restarts pods whose program reads the authority once, or had better not wait for the kubelet. */}}
{{- define "evalstop.authorityNote" -}}
{{- if eq .Values.extender.certificates.mode "generate" -}}
evalstop.dev/authority: {{ (include "evalstop.certificates" . | fromYaml).authority | quote }}
{{- end }}
{{- end }}
