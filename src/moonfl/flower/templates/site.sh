#!/bin/sh
# Start the SuperNode of this site. It connects to the server; its own port is only for processes on this machine.
# Requires moonfl[flower]. Errors of this site are printed in this terminal.
# The server needs a minute to notice that a SuperNode is gone and refuses a new one until then. A SuperNode that the
# server rejects while it runs ends with status 0. Therefore this script starts it again whenever it ends, at most ten
# times in a row; set RETRIES to change that. Ctrl-C or SIGTERM to this script ends both.
cd "$$(dirname "$$0")" || exit 1
command -v flower-supernode > /dev/null || {
    echo "$$0: flower-supernode is not on the PATH; activate the environment in which moonfl[flower] is installed" >&2
    exit 127
}
export FLWR_HOME="$$PWD/flower" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
tries=0
trap 'kill $$!; wait $$!; exit 143' INT TERM
while true; do
    began=$$(date +%s)
    flower-supernode --superlink $ADDRESS --root-certificates ca.crt --auth-supernode-private-key key \
        --port $SITE_PORT --node-config "site=\"$$PWD/site.toml\"" &
    wait $$!
    status=$$?
    [ $$status -eq 0 ] && status=1
    [ $$(($$(date +%s) - began)) -gt 60 ] && tries=0
    tries=$$((tries + 1))
    echo "start.sh: the SuperNode has ended. If the server rejected it (401 Unauthorized, or not activated), either" \
        "its key is not registered there (server/register.sh), or the clock of this machine or of the server is" \
        "wrong, or the previous SuperNode of this site still counts as connected."
    [ $$tries -ge "$${RETRIES:-10}" ] && exit $$status
    echo "start.sh: trying again in 10 s"
    sleep 10 &
    wait $$!
done
