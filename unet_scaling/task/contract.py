"""The contract of a Python file that defines a task: what docs/your_model.md explains with an example."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor, nn

from unet_scaling.data.image_source import Batch
from unet_scaling.data.sample_data import MapStyleData
from unet_scaling.study.options import Scalar

OptionValues = Mapping[str, Scalar]


class TaskFile(Protocol):
    """The functions that a file has to define.

    It may define four more. `collate(samples)` makes a batch of a list of samples; without it torch's
    default_collate does. `transform(batch, seeds)` prepares a batch on its device: `seeds` is int64 [batch],
    a number for each training sample and epoch from which to draw what is random, and None for test samples.
    `optimizer(model)` returns Adam, AdamW or SGD of torch.optim with fused=True. Without it,
    `parameters(model)` returns parameters for Adam, or groups of them as torch's optimizers take them.
    """

    def build_model(self, options: OptionValues) -> nn.Module:
        """Return the model on the CPU, its weights drawn from torch's generator."""

    def datasets(self, options: OptionValues) -> tuple[MapStyleData, MapStyleData]:
        """Return the training set and the test set; called on one worker of each host before the others."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of a batch as a scalar, the mean over its samples."""

    def count(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return int64 [k] counts of a batch of the test set, which add up over its samples."""

    def score(self, counts: Sequence[int]) -> Mapping[str, float | None]:
        """Return the scores that follow from the counts of the whole test set.

        The first is the one that is judged: a share from 0 to 1, of which more is better. None where the
        counts give none.
        """


REQUIRED = ("build_model", "datasets", "loss", "count", "score")
