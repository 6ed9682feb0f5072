"""Settings of Flower for this process, and the check that Flower is installed.

Flower looks for updates, counts its users and installs dependencies of an app. A run does none of
these, so the environment variables that disable them are set before flwr is imported.
"""

import importlib.util
import os

from ..errors import InputError

SETTINGS = {
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}

for _name, _value in SETTINGS.items():
    os.environ.setdefault(_name, _value)

if importlib.util.find_spec("flwr") is None:
    raise InputError(
        "this command needs Flower, which is not installed: "
        "pip install '.[flower]' in a clone of moonfl"
    )
