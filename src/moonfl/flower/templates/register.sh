#!/bin/sh
# Admit sites: their public keys are registered at the SuperLink, which must be running. Once is enough.
# Without arguments those of all sites; with arguments, the files named (from this folder).
cd "$$(dirname "$$0")" || exit 1
command -v flwr > /dev/null || {
    echo "$$0: flwr is not on the PATH; activate the environment that moonfl[flower] is installed in" >&2
    exit 127
}
export FLWR_HOME="$$PWD/flower" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
mkdir -p flower
cat > flower/config.toml <<END
[superlink]
default = "moonfl"

[superlink.moonfl]
address = "$ADDRESS"
root-certificates = "$$PWD/ca.crt"
END
[ $$# -gt 0 ] || set -- ../site-*/key.pub
failed=0
for file in "$$@"; do
    flwr supernode register "$$file" moonfl || failed=1
done
exit $$failed
