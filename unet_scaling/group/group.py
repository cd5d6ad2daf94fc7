"""A worker among all workers of its run: the only way in which they exchange anything is a sum."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unet_scaling.group.identity import Identity
from unet_scaling.group.watchdog import blocking
from unet_scaling.study.errors import UserError

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Group:
    """This worker among all workers of the run.

    `sum_over_workers` is the framework's: it sums a tensor of the worker's device over all workers, in place,
    and returns it. Outside the training step nothing else is exchanged; gathering and barriers are sums too.
    `transport` says what carries the sums, in the framework's own words.
    """

    identity: Identity
    device: torch.device
    sum_over_workers: Callable[[Tensor], Tensor]
    transport: dict[str, str]

    @property
    def rank(self) -> int:
        return self.identity.rank

    @property
    def size(self) -> int:
        return self.identity.size

    def wait_for_all(self) -> None:
        """Return when every worker has called this: a barrier."""
        with blocking:
            self.sum_over_workers(torch.ones(1, device=self.device)).item()

    def gather_numbers(self, value: float) -> list[float]:
        """Return every worker's value in float64, by rank, on every worker."""
        return [float(number) for number in self.gather_array(np.asarray(value, dtype=np.float64))]

    def gather_array(self, own: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return every worker's array, [workers, ...] by rank, on every worker; in one sum."""
        # Each worker fills its own row of zeros: the sum holds the rows of all.
        rows = torch.zeros(self.size, *own.shape, dtype=torch.float64, device=self.device)
        rows[self.rank] = torch.from_numpy(own)
        with blocking:
            gathered: npt.NDArray[np.float64] = self.sum_over_workers(rows).cpu().numpy()
        return gathered

    def gather_strings(self, text: str) -> list[str]:
        """Return every worker's text, by rank, on every worker."""
        return [data.decode() for data in self.gather_bytes(text.encode())]

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Return every worker's bytes, by rank, on every worker."""
        lengths = [int(length) for length in self.gather_numbers(len(data))]
        # int32, since not every back end sums bytes.
        rows = torch.zeros(self.size, max(lengths), dtype=torch.int32, device=self.device)
        rows[self.rank, : len(data)] = torch.from_numpy(np.frombuffer(data, np.uint8).astype(np.int32))
        with blocking:
            gathered = self.sum_over_workers(rows).to("cpu", torch.uint8)
        return [bytes(row[:length].numpy()) for row, length in zip(gathered, lengths, strict=True)]

    def run_on_all(self, action: Callable[[], _Result]) -> _Result:
        """Run `action` on every worker; return this worker's result.

        Raises UserError on every worker alike where it raised one on any: that of the lowest rank.
        """
        outcome: _Result | UserError
        try:
            outcome = action()
        except UserError as error:
            outcome = error
        failure = f"{outcome.exit_code} {outcome}" if isinstance(outcome, UserError) else ""
        failures = [text for text in self.gather_strings(failure) if text]
        if failures:
            code, _, text = failures[0].partition(" ")
            raise UserError(text, int(code))
        assert not isinstance(outcome, UserError)
        return outcome


def single_worker() -> Group:
    """Return a group of one worker on the CPU, without a framework: a sum is the tensor itself."""
    return Group(Identity(0, 1, 0, "none"), torch.device("cpu"), lambda tensor: tensor, {})
