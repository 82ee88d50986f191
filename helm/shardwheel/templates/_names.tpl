{{- define "shardwheel.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* Short enough for the labels that Kubernetes makes of it. */ -}}
{{- define "shardwheel.fullname" -}}
{{- $name := include "shardwheel.name" . -}}
{{- $whole := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $whole .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "shardwheel.headless" -}}
{{- include "shardwheel.fullname" . -}}-nodes
{{- end -}}

{{- define "shardwheel.domain" -}}
{{- printf "%s.svc.%s" .Release.Namespace .Values.clusterDomain -}}
{{- end -}}

{{- /* What the pods of a part of the chart have in common, and nothing that an upgrade changes: (list . "node"). */ -}}
{{- define "shardwheel.selector" -}}
app.kubernetes.io/name: {{ include "shardwheel.name" (index . 0) }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "shardwheel.labels" -}}
{{- $root := index . 0 -}}
{{ include "shardwheel.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 }}
{{- end -}}

{{- define "shardwheel.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "shardwheel.serviceAccount" -}}
{{- default (include "shardwheel.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "shardwheel.tlsSecret" -}}
{{- if eq .Values.tls.source "existingSecret" -}}
{{- .Values.tls.existingSecret -}}
{{- else -}}
{{- include "shardwheel.fullname" . -}}-tls
{{- end -}}
{{- end -}}

{{- define "shardwheel.adminTokenSecret" -}}
{{- default (printf "%s-admin-token" (include "shardwheel.fullname" .)) .Values.adminToken.existingSecret -}}
{{- end -}}

{{- define "shardwheel.adminTokenKey" -}}
{{- ternary .Values.adminToken.existingSecretKey "token" (ne .Values.adminToken.existingSecret "") -}}
{{- end -}}

{{- define "shardwheel.databaseSecret" -}}
{{- default (printf "%s-database" (include "shardwheel.fullname" .)) .Values.database.existingSecret -}}
{{- end -}}

{{- define "shardwheel.databaseKey" -}}
{{- ternary .Values.database.existingSecretKey "url" (ne .Values.database.existingSecret "") -}}
{{- end -}}

{{- /* Every name under which a node is reached, as JSON: what its certificate is for. */ -}}
{{- define "shardwheel.dnsNames" -}}
{{- $client := include "shardwheel.fullname" . -}}
{{- $domain := include "shardwheel.domain" . -}}
{{- $headless := printf "%s.%s" (include "shardwheel.headless" .) $domain -}}
{{- $short := printf "%s.%s" $client .Release.Namespace -}}
{{- $names := list $client $short (printf "%s.svc" $short) (printf "%s.%s" $client $domain) $headless (printf "*.%s" $headless) "localhost" -}}
{{- concat $names .Values.tls.extraNames | uniq | toJson -}}
{{- end -}}
