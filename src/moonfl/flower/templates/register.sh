#!/bin/sh
# Admit the sites: their public keys are registered at the SuperLink, which must be running. Once is enough.
cd "$$(dirname "$$0")" || exit 1
export FLWR_HOME="$$PWD/flower" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
for key in "$${@:-../site-*/key.pub}"; do
    for file in $$key; do
        flwr supernode register "$$file" moonfl || exit 1
    done
done
