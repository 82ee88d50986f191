{{- /*
Secrets that the chart draws: afresh at the first install, and from the cluster ever after. Leaves them in .drawn, so that
all templates of one render see the same. A render without a cluster (helm template) finds none and draws anew.
*/ -}}
{{- define "shardwheel.draw" -}}
{{- if not (hasKey . "drawn") -}}
{{- $drawn := dict "token" (include "shardwheel.keptOrNew" (list . "admin-token" "token")) -}}
{{- if .Values.trialPostgres.enabled -}}
{{- $_ := set $drawn "password" (include "shardwheel.keptOrNew" (list . "trial-postgres" "password")) -}}
{{- $_ := set $drawn "superuser" (include "shardwheel.keptOrNew" (list . "trial-postgres" "superuser")) -}}
{{- end -}}
{{- $_ := set . "drawn" $drawn -}}
{{- if eq .Values.tls.source "generate" -}}
{{- include "shardwheel.drawCertificate" . -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* 43 of 62 characters are 256 bits. */ -}}
{{- define "shardwheel.keptOrNew" -}}
{{- $root := index . 0 -}}
{{- $kept := lookup "v1" "Secret" $root.Release.Namespace (printf "%s-%s" (include "shardwheel.fullname" $root) (index . 1)) -}}
{{- if and $kept (hasKey $kept.data (index . 2)) -}}
{{- index $kept.data (index . 2) | b64dec -}}
{{- else -}}
{{- randAlphaNum 43 -}}
{{- end -}}
{{- end -}}

{{- /* The CA is for ever; the certificate is signed anew when what it is for has changed. */ -}}
{{- define "shardwheel.drawCertificate" -}}
{{- $name := include "shardwheel.fullname" . -}}
{{- $days := int .Values.tls.days -}}
{{- $ca := dict -}}
{{- $keptCa := lookup "v1" "Secret" .Release.Namespace (printf "%s-ca" $name) -}}
{{- if $keptCa -}}
{{- $ca = buildCustomCert (index $keptCa.data "ca.crt") (index $keptCa.data "ca.key") -}}
{{- else -}}
{{- $ca = genCAWithKey (printf "%s CA" $name) 7300 (genPrivateKey "ecdsa") -}}
{{- end -}}
{{- $names := include "shardwheel.dnsNames" . | fromJsonArray -}}
{{- $terms := printf "%s %d %v %s" (join "," $names) $days .Values.tls.renewal $ca.Cert | sha256sum | trunc 16 -}}
{{- $_ := set .drawn "caCert" $ca.Cert -}}
{{- $_ := set .drawn "caKey" $ca.Key -}}
{{- $_ := set .drawn "terms" $terms -}}
{{- $kept := lookup "v1" "Secret" .Release.Namespace (printf "%s-tls" $name) -}}
{{- if and $kept (eq (dig "metadata" "annotations" "shardwheel/terms" "" $kept) $terms) -}}
{{- $_ := set .drawn "cert" (index $kept.data "tls.crt" | b64dec) -}}
{{- $_ := set .drawn "key" (index $kept.data "tls.key" | b64dec) -}}
{{- else -}}
{{- $signed := genSignedCertWithKey $name (list "127.0.0.1" "::1") $names $days $ca (genPrivateKey "ecdsa") -}}
{{- $_ := set .drawn "cert" $signed.Cert -}}
{{- $_ := set .drawn "key" $signed.Key -}}
{{- end -}}
{{- end -}}

{{- /* The URI of PostgreSQL, where the chart has it. */ -}}
{{- define "shardwheel.databaseUrl" -}}
{{- if .Values.trialPostgres.enabled -}}
{{- include "shardwheel.draw" . -}}
postgresql://shardwheel:{{ .drawn.password }}@{{ include "shardwheel.fullname" . }}-trial-postgres.{{ include "shardwheel.domain" . }}:5432/shardwheel
{{- else -}}
{{- .Values.database.url -}}
{{- end -}}
{{- end -}}
