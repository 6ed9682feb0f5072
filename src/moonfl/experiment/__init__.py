"""Experiment: one frozen, validated description of a run; TOML files and key=value overrides."""

from .checks import CUSTOM_DATA, CUSTOM_MODEL, check_effects
from .experiment import HOLDOUT, Experiment
from .files import (
    Trust,
    canonical_toml,
    code_hashes,
    code_names,
    fingerprint,
    from_dict,
    from_toml,
    rename_keys,
    to_dict,
    to_toml,
    user_code,
)
from .overrides import override, unknown_name

__all__ = [
    "CUSTOM_DATA",
    "CUSTOM_MODEL",
    "HOLDOUT",
    "Experiment",
    "Trust",
    "canonical_toml",
    "check_effects",
    "code_hashes",
    "code_names",
    "fingerprint",
    "from_dict",
    "from_toml",
    "override",
    "rename_keys",
    "to_dict",
    "to_toml",
    "unknown_name",
    "user_code",
]
