#!/bin/sh
# The SuperNode of this site: it connects to the server, nobody connects to it (its own port is for its own processes).
# Needs moonfl[flower].
cd "$$(dirname "$$0")" || exit 1
export FLWR_HOME="$$PWD/flower" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
exec flower-supernode --superlink $ADDRESS --root-certificates ca.crt --auth-supernode-private-key key \
    --port $OWN_PORT --node-config "site=\"$$PWD/site.toml\""
