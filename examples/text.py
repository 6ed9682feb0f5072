"""Text as token ids: which package of Python's standard library does a docstring come from?

Every party has the docstrings of some modules only. A docstring becomes the ids of its first words,
and the encoder is an embedding. Nothing is downloaded.
"""

import argparse
import ast
import importlib.util
import re
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import nn

import moonfl

PACKAGES = ("asyncio", "email", "http", "logging", "multiprocessing", "unittest")
LENGTH = 24  # words of a sample
WORDS = 1000  # in the vocabulary; id 0 fills up, id 1 is any other word
PARTIES = 4
EPOCHS = 2  # per round


class BagOfWords(nn.Module):
    """The mean of the embeddings of a text's words. moonfl adds the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 64, padding_idx=0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        present = (x > 0).unsqueeze(2)
        total = (self.embedding(x) * present).sum(dim=1)
        return total / present.sum(dim=1)


def docstrings(package: str) -> list[tuple[int, list[str]]]:
    """Return the words of every docstring of a package, with the number of its module."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    texts = []
    for number, path in enumerate(sorted(Path(spec.origin).parent.glob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                words = re.findall(r"[a-z]+", (ast.get_docstring(node) or "").lower())
                if len(words) >= 3:
                    texts.append((number, words))
    return texts


def read() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return token ids [N, LENGTH], the package and the party of every docstring."""
    texts = [(k, *text) for k, name in enumerate(PACKAGES) for text in docstrings(name)]
    counts = Counter(word for _, _, words in texts for word in words)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: WORDS - 2]
    ids = {word: k + 2 for k, word in enumerate(frequent)}
    x = np.zeros((len(texts), LENGTH), dtype=np.int64)
    for row, (_, _, words) in enumerate(texts):
        tokens = [ids.get(word, 1) for word in words[:LENGTH]]
        x[row, : len(tokens)] = tokens
    y = np.array([label for label, _, _ in texts])
    party = np.array([module % PARTIES for _, module, _ in texts])
    distinct = np.unique(x, axis=0, return_index=True)[1]  # the same text may occur repeatedly
    return x[distinct], y[distinct], party[distinct]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    x, y, party = read()
    parties = {f"party {k}": (x[party == k], y[party == k]) for k in range(PARTIES)}
    sizes = ", ".join(str(len(labels)) for _, labels in parties.values())
    share = 100 * np.bincount(y).max() / len(y)
    print(f"docstrings of each party: {sizes}; the most frequent package has {share:.1f} %")
    methods = {
        "SOLO": {"algorithm": moonfl.Solo(), "rounds": 1, "epochs": EPOCHS * args.rounds},
        "FedAvg": {"algorithm": moonfl.FedAvg(), "rounds": args.rounds, "epochs": EPOCHS},
    }
    for name, settings in methods.items():
        accuracies = []
        for seed in range(args.seeds):
            result = moonfl.federate(
                BagOfWords, parties, batch_size=16, lr=0.1, seed=seed, **settings
            )
            accuracies.append(100 * result.accuracy)
        each = ", ".join(f"{accuracy:.1f}" for accuracy in accuracies)
        print(f"{name} {np.mean(accuracies):.1f} % ({each})")


if __name__ == "__main__":
    main()
