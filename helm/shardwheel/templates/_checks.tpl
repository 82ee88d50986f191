{{- /* What a schema of single values cannot say. */ -}}
{{- define "shardwheel.check" -}}
{{- with .Values -}}
{{- $databases := compact (list .database.existingSecret .database.url (ternary "trial" "" .trialPostgres.enabled)) | len -}}
{{- if ne $databases 1 -}}
{{- fail (printf "database: give exactly one of database.existingSecret, database.url and trialPostgres.enabled (got %d)" $databases) -}}
{{- end -}}
{{- $zookeepers := compact (list .zookeeper.servers (ternary "trial" "" .trialZookeeper.enabled)) | len -}}
{{- if and (eq .coordinator "zookeeper") (ne $zookeepers 1) -}}
{{- fail (printf "zookeeper: the coordinator zookeeper needs either zookeeper.servers or trialZookeeper.enabled (got %d)" $zookeepers) -}}
{{- end -}}
{{- if and (eq .coordinator "postgres") (gt $zookeepers 0) -}}
{{- fail "coordinator: is postgres, so leave out zookeeper.servers and trialZookeeper.enabled, or set it to zookeeper" -}}
{{- end -}}
{{- if and (eq .tls.source "existingSecret") (not .tls.existingSecret) -}}
{{- fail "tls.existingSecret: is required with tls.source existingSecret: the name of a Secret with ca.crt, tls.crt and tls.key" -}}
{{- end -}}
{{- if and (eq .tls.source "certManager") (not .tls.certManager.issuer) -}}
{{- fail "tls.certManager.issuer: is required with tls.source certManager" -}}
{{- end -}}
{{- if and .tls.requireClientCertificates (eq .tls.source "none") -}}
{{- fail "tls.requireClientCertificates: needs TLS, but tls.source is none" -}}
{{- end -}}
{{- if and .autoscaling.enabled (gt (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas)) -}}
{{- fail (printf "autoscaling.minReplicas: must not exceed autoscaling.maxReplicas (got %v and %v)" .autoscaling.minReplicas .autoscaling.maxReplicas) -}}
{{- end -}}
{{- end -}}
{{- end -}}
