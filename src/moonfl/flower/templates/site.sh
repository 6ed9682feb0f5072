#!/bin/sh
# The SuperNode of this site: it connects to the server, nobody connects to it (its own port is for its own processes).
# Needs moonfl[flower]. A server takes a minute to notice that a SuperNode is gone, and refuses a new one until then:
# so this tries again, ten times in a row at most (RETRIES says how often). What goes wrong here is told in this terminal.
cd "$$(dirname "$$0")" || exit 1
command -v flower-supernode > /dev/null || {
    echo "$$0: flower-supernode is not on the PATH; activate the environment that moonfl[flower] is installed in" >&2
    exit 127
}
export FLWR_HOME="$$PWD/flower" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
tries=0
while true; do
    began=$$(date +%s)
    flower-supernode --superlink $ADDRESS --root-certificates ca.crt --auth-supernode-private-key key \
        --port $OWN_PORT --node-config "site=\"$$PWD/site.toml\"" &
    node=$$!
    trap 'kill $$node; wait $$node; exit 143' INT TERM
    wait $$node && exit 0
    status=$$?
    [ $$(($$(date +%s) - began)) -gt 60 ] && tries=0
    tries=$$((tries + 1))
    [ $$tries -ge "$${RETRIES:-10}" ] && exit $$status
    echo "start.sh: trying again in 10 s. If the server does not activate this SuperNode: either its key is not" \
        "registered there (server/register.sh), or the one that ran here before still counts as connected."
    sleep 10 &
    node=$$!
    wait $$node
done
