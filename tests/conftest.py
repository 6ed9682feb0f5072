"""Shared by all tests."""

import os

import hypothesis
import torch

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")
torch.set_num_threads(1)
