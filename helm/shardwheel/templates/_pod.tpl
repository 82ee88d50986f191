{{- /* What all pods of our own image have in common. */ -}}
{{- define "shardwheel.podSpec" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext: {{- include "shardwheel.podSecurity" (list . .Values.runAsUser) | nindent 2 }}
{{- end -}}

{{- /* (list . 999): the account, or null to leave it to the platform. */ -}}
{{- define "shardwheel.podSecurity" -}}
{{- $user := index . 1 -}}
runAsNonRoot: true
{{- if not (kindIs "invalid" $user) }}
runAsUser: {{ int $user }}
runAsGroup: {{ int $user }}
fsGroup: {{ int $user }}
# A large volume is not walked through at each start.
fsGroupChangePolicy: OnRootMismatch
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "shardwheel.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "shardwheel.ourContainer" -}}
image: {{ include "shardwheel.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{- include "shardwheel.containerSecurity" . | nindent 2 }}
{{- end -}}

{{- /* Variables for the connection to PostgreSQL: (list . SECRET KEY). */ -}}
{{- define "shardwheel.databaseEnv" -}}
{{- $root := index . 0 -}}
- name: SHARDWHEEL_DATABASE
  valueFrom:
    secretKeyRef: {name: {{ index . 1 }}, key: {{ index . 2 }}}
{{- with $root.Values.database }}
{{- if and .sslMode (not $root.Values.trialPostgres.enabled) }}
- name: PGSSLMODE
  value: {{ .sslMode }}
{{- if or .caSecret (eq .sslMode "verify-full") }}
- name: PGSSLROOTCERT
  value: {{ ternary "/etc/shardwheel/database/ca.crt" "system" (ne .caSecret "") }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "shardwheel.databaseMount" -}}
{{- if .Values.database.caSecret -}}
- {name: database-ca, mountPath: /etc/shardwheel/database, readOnly: true}
{{- end }}
{{- end -}}

{{- define "shardwheel.databaseVolume" -}}
{{- with .Values.database.caSecret -}}
- name: database-ca
  secret: {secretName: {{ . }}, items: [{key: ca.crt, path: ca.crt}], defaultMode: 0440}
{{- end }}
{{- end -}}

{{- /* The container that migrates: (list . DATABASE-SECRET KEY). It mounts the volumes admin-token and database-ca. */ -}}
{{- define "shardwheel.migrateContainer" -}}
{{- $root := index . 0 -}}
name: migrate
{{ include "shardwheel.ourContainer" $root }}
args:
  - migrate
  {{- include "shardwheel.adminTokenFlags" $root | nindent 2 }}
  {{- range $flag, $value := pick $root.Values.migration "shards" "partitions" }}
  {{- if not (kindIs "invalid" $value) }}
  - --{{ $flag }}={{ int $value }}
  {{- end }}
  {{- end }}
env: {{- include "shardwheel.databaseEnv" . | nindent 2 }}
resources:
  requests: {cpu: 100m, memory: 128Mi}
  limits: {memory: 256Mi}
volumeMounts:
  - {name: admin-token, mountPath: /etc/shardwheel/admin, readOnly: true}
  {{- with include "shardwheel.databaseMount" $root }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- /* The token as a file: (list . SECRET KEY). */ -}}
{{- define "shardwheel.adminTokenVolume" -}}
- name: admin-token
  secret: {secretName: {{ index . 0 }}, items: [{key: {{ index . 1 }}, path: token}], defaultMode: 0440}
{{- end -}}

{{- /* A server for trials keeps its data in the claim "data", or in an emptyDir. */ -}}
{{- define "shardwheel.trialStorage" -}}
{{- if . -}}
volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: {{ . }}}}
{{- end }}
{{- end -}}
