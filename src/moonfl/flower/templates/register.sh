#!/bin/sh
# Register the public keys of sites at the SuperLink, which must be running. Needed once per key.
# Arguments: key files, relative to this folder. Default: the keys of all sites.
cd "$$(dirname "$$0")" || exit 1
command -v flwr > /dev/null || {
    echo "$$0: flwr is not on the PATH; activate the environment in which moonfl[flower] is installed" >&2
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
