{{- /* The settings of a node and of `migrate` for TLS and tokens: all names of them are in this file. */ -}}

{{- define "shardwheel.accessSettings" -}}
{{- if eq .Values.tls.source "none" -}}
SHARDWHEEL_INSECURE: "true"
{{- else -}}
SHARDWHEEL_TLS_CERT: /etc/shardwheel/tls/tls.crt
SHARDWHEEL_TLS_KEY: /etc/shardwheel/tls/tls.key
SHARDWHEEL_TLS_CA: /etc/shardwheel/tls/ca.crt
{{- if .Values.tls.requireClientCertificates }}
SHARDWHEEL_TLS_CLIENT_CA: /etc/shardwheel/tls/ca.crt
{{- end }}
{{- end -}}
{{- end -}}

{{- define "shardwheel.adminTokenFlags" -}}
- --admin-token-file=/etc/shardwheel/admin/token
{{- end -}}

{{- define "shardwheel.httpScheme" -}}
{{- ternary "HTTP" "HTTPS" (eq .Values.tls.source "none") -}}
{{- end -}}

{{- /* Variables of shardctl and of clients, for the chart's own service. */ -}}
{{- define "shardwheel.clientEnv" -}}
- name: SHARDWHEEL_ADDRESS
  value: {{ include "shardwheel.fullname" . }}.{{ include "shardwheel.domain" . }}:{{ .Values.service.port }}
{{- if ne .Values.tls.source "none" }}
- name: SHARDWHEEL_CA
  value: /etc/shardwheel/tls/ca.crt
{{- if .Values.tls.requireClientCertificates }}
- name: SHARDWHEEL_CERT
  value: /etc/shardwheel/tls/tls.crt
- name: SHARDWHEEL_KEY
  value: /etc/shardwheel/tls/tls.key
{{- end }}
{{- end }}
- name: SHARDWHEEL_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ include "shardwheel.adminTokenSecret" . }}, key: {{ include "shardwheel.adminTokenKey" . }}}
{{- end -}}
