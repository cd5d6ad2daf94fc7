"""A small residual network that tells letters apart, drawn in the fonts that matplotlib ships."""

import numpy as np
import torch
from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont
from torch import nn
from torch.nn import functional

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NAMES = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "STIXGeneral")
FONTS = [ImageFont.truetype(f"{get_data_path()}/fonts/ttf/{name}.ttf", 12) for name in NAMES]


def letter(index):
    """Return an image [1, 16, 16] and its letter; font, letter and place follow from the index alone."""
    places = np.random.default_rng(index)
    label, font = places.integers(len(LETTERS)), FONTS[places.integers(len(FONTS))]
    image = Image.new("L", (16, 16))
    ImageDraw.Draw(image).text(tuple(places.integers(0, 4, 2)), LETTERS[label], fill=255, font=font)
    return torch.from_numpy(np.array(image, dtype=np.float32) / 255)[None], int(label)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, features):
        return functional.relu(features + self.layers(features))


def build_model(options):
    width = options["width"]
    blocks = [Residual(width) for _ in range(options["blocks"])]
    head = [nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * width, len(LETTERS))]
    return nn.Sequential(nn.Conv2d(1, width, 3, padding=1), *blocks, *head)


def datasets(options):
    letters = [letter(index) for index in range(options["samples"])]
    return letters[: -len(letters) // 5], letters[-len(letters) // 5 :]


def loss(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])


def count(model, batch):
    images, labels = batch
    right = model(images).argmax(dim=1) == labels
    return torch.stack([right.sum(), torch.tensor(len(labels), device=right.device)])


def score(counts):
    right, all_samples = counts
    return {"accuracy": right / all_samples}
