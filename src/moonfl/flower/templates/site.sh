#!/bin/sh
# Start the SuperNode of this site. It connects to the server; its own port is only for processes on this machine.
# Requires moonfl[flower]. Errors of this site are printed in this terminal.
# The server needs a minute to notice that a SuperNode is gone and refuses a new one until then. Therefore this script
# tries again, at most ten times in a row; set RETRIES to change that.
cd "$$(dirname "$$0")" || exit 1
command -v flower-supernode > /dev/null || {
    echo "$$0: flower-supernode is not on the PATH; activate the environment in which moonfl[flower] is installed" >&2
    exit 127
}
export FLWR_HOME="$$PWD/flower" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
tries=0
while true; do
    began=$$(date +%s)
    flower-supernode --superlink $ADDRESS --root-certificates ca.crt --auth-supernode-private-key key \
        --port $SITE_PORT --node-config "site=\"$$PWD/site.toml\"" &
    node=$$!
    trap 'kill $$node; wait $$node; exit 143' INT TERM
    wait $$node && exit 0
    status=$$?
    [ $$(($$(date +%s) - began)) -gt 60 ] && tries=0
    tries=$$((tries + 1))
    [ $$tries -ge "$${RETRIES:-10}" ] && exit $$status
    echo "start.sh: trying again in 10 s. If the server does not activate this SuperNode, either its key is not" \
        "registered there (server/register.sh), or the previous SuperNode of this site still counts as connected."
    sleep 10 &
    node=$$!
    wait $$node
done
