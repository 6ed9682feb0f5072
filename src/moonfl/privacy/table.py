"""The privacy mechanisms by name. A new one is a file next to this one and an entry here."""

from .base import NoPrivacy, Privacy
from .server_noise import ServerNoise

PRIVACY: dict[str, type[Privacy]] = {
    "none": NoPrivacy,
    "server": ServerNoise,
}
