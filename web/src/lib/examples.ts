// The examples that pages show where there is nothing yet. TestDashboardExamples of cmd/stint runs them.

export const database = `[server]
database = "sqlite:stint.db"`

export const rule = `{
  "name": "search-per-user",
  "match": { "paths": ["/api/search"] },
  "count_by": ["user"],
  "limits": [{ "name": "search", "limit": "100/1h" }]
}`

export const applied = `stint apply -f rules.toml`

export const tier = `[[tiers]]
name   = "premium"
limits = { hourly = "10000/1h", monthly = "unlimited" }`

export const user = `[[users]]
id     = "alice"
limits = { hourly = "20000/1h" }`

export const tenant = `[[tenants]]
id   = "acme"
name = "Acme"`

export const ban = `[[bans]]
ip     = "192.0.2.0/24"
reason = "scraping"`

export const exemption = `[[exemptions]]
ip     = "192.0.2.0/24"
reason = "our own network"`

export const metered = `[[rules]]
name     = "tokens"
count_by = ["user"]
cost     = { meter = "llm.total_tokens", reserve = 500 }
limits   = [{ name = "tokens", limit = "1000000/month" }]`

export const envoy = `[envoy]
config = "/etc/stint/envoy"`

export const regions = `[region]
name = "eu-west"
secret_file = "/etc/stint/region.secret"

[[region.peers]]
name = "us-east"
url = "https://stint.us-east.example.com:7443"`
