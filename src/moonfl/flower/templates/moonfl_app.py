"""The Flower app of the server and the sites; experiment.toml defines what is trained."""

from pathlib import Path

from moonfl.flower.server import server_app, site_app

experiment = Path(__file__).with_name("experiment.toml")
server = server_app(experiment)
client = site_app(experiment)
