"""A small transformer that predicts the next character of the documentation that comes with Python."""

from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional

TEXT = torch.tensor(list("\n".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")))
CHARACTERS = 128
LENGTH = 48


class Transformer(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.places = nn.Parameter(torch.zeros(LENGTH, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, CHARACTERS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, passages):
        return self.head(self.layers(self.characters(passages) + self.places, mask=self.mask, is_causal=True))


def build_model(options):
    return Transformer(options["width"], options["layers"])


def datasets(options):
    passages = TEXT.unfold(0, LENGTH + 1, LENGTH)[: options["samples"]]
    return passages[: -len(passages) // 5], passages[-len(passages) // 5 :]


def loss(model, passages):
    logits = model(passages[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), passages[:, 1:].flatten())


def count(model, passages):
    right = model(passages[:, :-1]).argmax(dim=2) == passages[:, 1:]
    return torch.stack([right.sum(), torch.tensor(right.numel(), device=right.device)])


def score(counts):
    right, characters = counts
    return {"character_accuracy": right / characters}
