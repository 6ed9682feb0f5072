#!/bin/sh
# Start the SuperLink: sites connect to it, and runs are started at it. Requires moonfl[flower].
cd "$$(dirname "$$0")" || exit 1
command -v flower-superlink > /dev/null || {
    echo "$$0: flower-superlink is not on the PATH; activate the environment in which moonfl[flower] is installed" >&2
    exit 127
}
export FLWR_HOME="$$PWD/flower" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
exec flower-superlink --host $HOST --port $PORT \
    --ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key \
    --enable-supernode-auth --database state.db --disable-runtime-dependency-installation
