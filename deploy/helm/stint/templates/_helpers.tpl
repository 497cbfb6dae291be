{{- define "stint.name" -}}
{{- if contains "stint" .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-stint" .Release.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "stint.selector" -}}
app.kubernetes.io/name: stint
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "stint.labels" -}}
{{ include "stint.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Whether several pods may run. */}}
{{- define "stint.several" -}}
{{- if or .Values.autoscaling.enabled (gt (int .Values.replicas) 1) }}true{{ end }}
{{- end }}

{{/* What Stint would reject at its start, or do otherwise than meant. */}}
{{- define "stint.check" -}}
{{- if and (include "stint.several" .) (not .Values.counters.url) (not .Values.counters.secret.name) }}
{{- fail "several pods need a Redis: set counters.url or counters.secret.name; each pod would count by itself" }}
{{- end }}
{{- range $name := list "counters" "database" }}
{{- $v := index $.Values $name }}
{{- if and $v.url $v.secret.name }}
{{- fail (printf "%s.url and %s.secret.name are both set: want one of them" $name $name) }}
{{- end }}
{{- if and $v.password.name (not (contains "$(PASSWORD)" $v.url)) }}
{{- fail (printf "%s.password.name is set, and %s.url has no $(PASSWORD)" $name $name) }}
{{- end }}
{{- if and (contains "$(PASSWORD)" $v.url) (not $v.password.name) }}
{{- fail (printf "%s.url has $(PASSWORD): set %s.password.name" $name $name) }}
{{- end }}
{{- end }}
{{- if and (or .Values.database.url .Values.database.secret.name) .Values.rules }}
{{- fail "rules are in the database: set rules to \"\", and write them by stint apply or in the dashboard" }}
{{- end }}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) }}
{{- fail "ingress.enabled: want at least one of ingress.hosts" }}
{{- end }}
{{- if and .Values.ingress.enabled (eq .Values.ingress.port "gateway") (not .Values.gateway.enabled) }}
{{- fail "ingress.port is gateway: set gateway.enabled, or ingress.port to http" }}
{{- end }}
{{- if and .Values.serviceMonitor.enabled (not .Values.admin.enabled) }}
{{- fail "serviceMonitor.enabled: metrics are at the admin listener: set admin.enabled" }}
{{- end }}
{{- end }}

{{/* The variables of a URL: setting is its variable, secret the name of a password's. */}}
{{- define "stint.url" -}}
{{- $password := printf "%s_PASSWORD" .name }}
{{- if .from.password.name }}
- name: {{ $password }}
  valueFrom: { secretKeyRef: { name: {{ .from.password.name }}, key: {{ .from.password.key }} } }
{{- end }}
{{- if .from.secret.name }}
- name: {{ .setting }}
  valueFrom: { secretKeyRef: { name: {{ .from.secret.name }}, key: {{ .from.secret.key }} } }
{{- else if .from.url }}
- name: {{ .setting }}
  value: {{ tpl .from.url .root | replace "$(PASSWORD)" (printf "$(%s)" $password) | quote }}
{{- end }}
{{- end }}

{{- define "stint.listener" -}}
- name: STINT_SERVER_{{ .name | upper }}_ADDRESS
  value: ":{{ .port }}"
{{- if .of.tlsSecret }}
- name: STINT_SERVER_{{ .name | upper }}_TLS_CERT
  value: /etc/stint/tls-{{ .name }}/tls.crt
- name: STINT_SERVER_{{ .name | upper }}_TLS_KEY
  value: /etc/stint/tls-{{ .name }}/tls.key
{{- end }}
{{- end }}

{{/* The listeners that are on, as a map from name to port of the container. */}}
{{- define "stint.listeners" -}}
http: 8080
{{- if .Values.gateway.enabled }}
gateway: 8000
{{- end }}
{{- if .Values.grpc.enabled }}
grpc: 8081
{{- end }}
{{- if .Values.admin.enabled }}
admin: 9090
{{- end }}
{{- end }}
