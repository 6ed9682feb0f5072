"""The same algorithms over real sites, on Flower. The only folder that imports flwr."""

import importlib.util
import os

from ..errors import InputError

# Flower asks the network for updates, counts its users, and installs what an app asks for; a run does none of these.
for _switch in ("FLWR_DISABLE_UPDATE_CHECK", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"):
    os.environ.setdefault(_switch, "1")
for _switch in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
    os.environ.setdefault(_switch, "0")

if importlib.util.find_spec("flwr") is None:
    raise InputError(
        "this needs Flower, which is not installed: pip install '.[flower]' in a clone of moonfl"
    )
