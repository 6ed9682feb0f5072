"""Federated learning over real sites with Flower. The only package that imports flwr.

| file | role |
|---|---|
| protocol.py | the message format between server and sites, and its checks |
| messaging.py | sends messages and collects the answers until a deadline |
| membership.py | which node is which party, and whether the sites fit together |
| engine.py | the engine whose parties are sites; what happens when a site fails |
| client.py | the ClientApp: how a site answers each message |
| site.py | a site's site.toml and data |
| server.py | the ServerApp of a deployment: starts or resumes a run |
| init.py | `moonfl flower init`: the folders of a deployment, from templates/ |
| run.py | `moonfl flower run`: starts a run at the server and follows its log |
| simulation.py | `moonfl flower simulate`: all parties on Flower's simulation engine |
| certificates.py | certificates and keys of a deployment |
| environment.py | environment variables for Flower, and the check that it is installed |
"""

from . import environment

__all__ = ["environment"]
