#!/bin/sh
# Makes every identity that is missing, and gives each part its own file and no other. May be run again at any time;
# after `apply` let a tenant in or `token` changed who may use the HTTP API, have it run again (`make compose-identities`).
set -eu
umask 077
cd /var/lib/tessera

tessera init --only-identities --credentials credentials --tenant "$TESSERA_TENANT"
# The gateway starts for nobody unless somebody has a token; this one is the tenant's, kept with its credential.
[ -e credentials/gateway-tokens.toml ] ||
  tessera token new "$TESSERA_TENANT" --credentials credentials > credentials/gateway-token

give() { # FILE TO
  cp "credentials/$1" "$2.new"
  mv "$2.new" "$2"
}
for service in admission queueing scheduler preemption reclamation binder projection notifier gateway; do
  give "$service.json" "$service/identity.json"
done
# Secrets of webhooks are the notifier's alone; whoever runs this puts them there, a file TENANT.SECRET each.
mkdir -p credentials/webhook-secrets notifier/webhook-secrets
for secret in credentials/webhook-secrets/*; do
  [ ! -f "$secret" ] || give "${secret#credentials/}" "notifier/${secret#credentials/}"
done
give gateway-tokens.toml gateway/gateway-tokens.toml
give nats-auth.conf nats/nats-auth.conf
give redis-users.acl redis/redis-users.acl
