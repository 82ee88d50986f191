{{- /* Settings of the nodes as variables, but for what differs from node to node, and for secrets. */ -}}
{{- define "shardwheel.settings" -}}
SHARDWHEEL_COORDINATOR: {{ .Values.coordinator }}
{{- if eq .Values.coordinator "zookeeper" }}
SHARDWHEEL_ZOOKEEPER: {{ include "shardwheel.zookeeperServers" . }}
{{- with .Values.zookeeper.acl }}
SHARDWHEEL_ZOOKEEPER_ACL: {{ . | quote }}
{{- end }}
{{- if .Values.zookeeper.tlsSecret }}
SHARDWHEEL_ZOOKEEPER_CA: /etc/shardwheel/zookeeper/ca.crt
SHARDWHEEL_ZOOKEEPER_CERT: /etc/shardwheel/zookeeper/tls.crt
SHARDWHEEL_ZOOKEEPER_KEY: /etc/shardwheel/zookeeper/tls.key
{{- end }}
{{- end }}
{{- range $name, $value := .Values.settings }}
{{- if not (kindIs "invalid" $value) }}
SHARDWHEEL_{{ $name | snakecase | upper }}: {{ ternary (int64 $value | toString) (toString $value) (kindIs "float64" $value) | quote }}
{{- end }}
{{- end }}
{{ include "shardwheel.accessSettings" . }}
{{- end -}}

{{- define "shardwheel.zookeeperEnv" -}}
{{- with .Values.zookeeper.authSecret -}}
- name: SHARDWHEEL_ZOOKEEPER_AUTH
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: auth}
{{- end }}
{{- end -}}

{{- define "shardwheel.zookeeperMount" -}}
{{- if .Values.zookeeper.tlsSecret -}}
- {name: zookeeper-tls, mountPath: /etc/shardwheel/zookeeper, readOnly: true}
{{- end }}
{{- end -}}

{{- define "shardwheel.zookeeperVolume" -}}
{{- with .Values.zookeeper.tlsSecret -}}
- name: zookeeper-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{- define "shardwheel.zookeeperServers" -}}
{{- if .Values.trialZookeeper.enabled -}}
{{ include "shardwheel.fullname" . }}-trial-zookeeper.{{ include "shardwheel.domain" . }}:2181/shardwheel
{{- else -}}
{{ .Values.zookeeper.servers }}
{{- end -}}
{{- end -}}

{{- /* A duration such as "1m30s" in whole seconds, rounded up. */ -}}
{{- define "shardwheel.seconds" -}}
{{- $units := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0 -}}
{{- $total := 0.0 -}}
{{- range regexFindAll "[0-9.]+(ms|s|m|h|d)" . -1 -}}
{{- $total = addf $total (mulf (regexFind "[0-9.]+" . | float64) (get $units (regexFind "[a-z]+" .))) -}}
{{- end -}}
{{- ceil $total | int -}}
{{- end -}}

{{- /*
The time from the removal of a pod to its last moment: the pause before SIGTERM; 30 s, after which giving its shards away
ends in any case; the wait for results under way; 5 s to close. A node that ends within it leaves nothing to be run again.
*/ -}}
{{- define "shardwheel.gracePeriod" -}}
{{- add .Values.preStopSeconds 30 (include "shardwheel.seconds" .Values.settings.drainGrace | int) 5 -}}
{{- end -}}
