"""A worker among all workers of its run: the only way in which they exchange anything is a sum."""

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel
from torch import Tensor

from unet_scaling.base.errors import UserError
from unet_scaling.group.identity import Identity
from unet_scaling.group.watchdog import blocking, seconds_worked, thread_ids

_Result = TypeVar("_Result")
_Model = TypeVar("_Model", bound=BaseModel)
StartSum = Callable[..., Callable[[], object]]
# Short beside any time-out, long beside the sum that a beat costs.
PROGRESS_SECONDS = 0.5
WORD_BYTES = 4
CPU = torch.device("cpu")
# 64 MiB: one worker after the other fills it, so that no sum is larger than what is gathered.
WORDS_AT_ONCE = 2**24


@dataclass(frozen=True)
class Group:
    """This worker among all workers of the run.

    `start_sum` is the framework's: it begins to sum a tensor over all workers, in place, and returns what
    waits for the end. Outside the training step nothing else is exchanged; gathering and barriers are sums
    too.
    `start_sum` may be given a subgroup, which `new_subgroup` makes of a list of ranks: all workers call that.
    `transport` says what carries the sums of the worker's device, in the framework's own words.
    Gathering and barriers use the CPU: they come before NCCL is asked for anything, and a worker that waits
    in one waits in a call that returns, or fails, on the host.
    """

    identity: Identity
    device: torch.device
    start_sum: StartSum
    transport: dict[str, str]
    # A script's group may be one of NCCL alone, which sums on GPUs.
    sum_device: torch.device = CPU
    new_subgroup: Callable[[list[int]], object] | None = None

    @property
    def rank(self) -> int:
        return self.identity.rank

    @property
    def size(self) -> int:
        return self.identity.size

    def sum_over_workers(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all workers, in place, and return it."""
        self.start_sum(tensor)()
        return tensor

    def subgroup_sum(self, size: int) -> StartSum:
        """Return what sums as `start_sum` does, over this worker's subgroup of so many consecutive ranks.

        All workers come here together. Raises UserError, on every worker alike, where a subgroup has workers
        of several hosts: it would send over the network what it is to keep within a node.
        """
        subgroups = [list(range(first, first + size)) for first in range(0, self.size, size)]
        hosts = self.gather_strings(socket.gethostname())
        for ranks in subgroups:
            own_hosts = dict.fromkeys(hosts[rank] for rank in ranks)
            if len(own_hosts) > 1:
                raise UserError(
                    f"strategy.subgroup_size: workers {ranks[0]} to {ranks[-1]} of a subgroup are on "
                    f"{' and '.join(own_hosts)}; give a number that divides the workers of a node"
                )
        if size == self.size:
            return self.start_sum
        assert self.new_subgroup is not None
        made = [self.new_subgroup(ranks) for ranks in subgroups]
        return partial(self.start_sum, subgroup=made[self.rank // size])

    def wait_for_all(self) -> None:
        """Return when every worker has called this: a barrier."""
        with blocking:
            self.sum_over_workers(torch.ones(1, device=self.sum_device)).item()

    def gather_numbers(self, value: float) -> list[float]:
        """Return every worker's value in float64, by rank, on every worker."""
        return [float(number) for number in self.gather_array(np.asarray(value, dtype=np.float64))]

    def gather_array(self, own: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return every worker's array, [workers, ...] by rank, on every worker; in one sum."""
        # Each worker fills its own row of zeros: the sum holds the rows of all.
        rows = torch.zeros(self.size, *own.shape, dtype=torch.float64, device=self.sum_device)
        rows[self.rank] = torch.from_numpy(own)
        with blocking:
            gathered: npt.NDArray[np.float64] = self.sum_over_workers(rows).cpu().numpy()
        return gathered

    def gather_strings(self, text: str) -> list[str]:
        """Return every worker's text, by rank, on every worker."""
        return [data.decode() for data in self.gather_bytes(text.encode())]

    def gather_models(self, own: _Model) -> list[_Model]:
        """Return every worker's model, by rank, on every worker."""
        return [type(own).model_validate_json(text) for text in self.gather_strings(own.model_dump_json())]

    def gather_bytes(self, data: bytes, everywhere: bool = True) -> list[bytes]:
        """Return every worker's bytes, by rank, on every worker, or on worker 0 and b"" elsewhere."""
        lengths = [int(length) for length in self.gather_numbers(len(data))]
        # int32, since not every back end sums bytes: all in one row, in which each worker has its own words.
        words = [-(-length // WORD_BYTES) for length in lengths]
        first = sum(words[: self.rank])
        own = torch.frombuffer(bytearray(data) + bytes(WORD_BYTES), dtype=torch.uint8)
        own = own[: words[self.rank] * WORD_BYTES].view(torch.int32)
        kept = bytearray()
        for start in range(0, sum(words), WORDS_AT_ONCE):
            row = torch.zeros(min(WORDS_AT_ONCE, sum(words) - start), dtype=torch.int32)
            begin, end = (min(max(place - start, 0), len(row)) for place in (first, first + len(own)))
            row[begin:end] = own[start + begin - first : start + end - first]
            with blocking:
                row = self.sum_over_workers(row.to(self.sum_device)).cpu()
            if everywhere or self.rank == 0:
                kept += row.numpy().tobytes()
        starts = [WORD_BYTES * sum(words[:rank]) for rank in range(self.size)]
        return [bytes(kept[start : start + length]) for start, length in zip(starts, lengths, strict=True)]

    def run_on_all(self, action: Callable[[], _Result]) -> _Result:
        """Run `action`, which exchanges nothing, on every worker; return this worker's result.

        As long as one of them gets on, the others wait for it, whatever the time-out. Raises UserError on
        every worker alike where it raised one on any: that of the lowest rank.
        """
        ended = threading.Event()
        beats = threading.Thread(target=self._beat, args=[ended, thread_ids()], daemon=True)
        if self.size > 1:
            beats.start()
        outcome: _Result | UserError
        try:
            outcome = action()
        except UserError as error:
            outcome = error
        ended.set()
        if self.size > 1:
            with blocking:
                beats.join()
        failure = f"{outcome.exit_code} {outcome}" if isinstance(outcome, UserError) else ""
        failures = [text for text in self.gather_strings(failure) if text]
        if failures:
            code, _, text = failures[0].partition(" ")
            raise UserError(text, int(code))
        assert not isinstance(outcome, UserError)
        return outcome

    def _beat(self, ended: threading.Event, waiting: frozenset[int]) -> None:
        """Tell the others how far this worker is until all have ended; called in a thread of its own."""
        progress = None
        while True:
            is_over = ended.wait(PROGRESS_SECONDS)
            rows = torch.zeros(self.size, 2, dtype=torch.float64)
            rows[self.rank, 0] = is_over
            # The seconds that an action has worked, in some milliseconds: it gets on where they change.
            rows[self.rank, 1] = 0 if is_over else round(seconds_worked(waiting), 2)
            rows = self.sum_over_workers(rows.to(self.sum_device)).cpu()
            if rows[:, 0].all():
                return
            if progress is None or not torch.equal(rows, progress):
                blocking.changes += 1
            progress = rows


def wait_for_device(device: torch.device) -> None:
    """Return when all that is queued on a GPU is done: also sums over all workers, which others may delay."""
    if device.type == "cuda":
        with blocking:
            torch.cuda.synchronize(device)


def single_worker(device: torch.device = CPU, launcher: str = "none") -> Group:
    """Return a group of one worker without a framework: a sum is the tensor itself."""
    return Group(Identity(0, 1, 0, launcher), device, lambda _: lambda: None, {})
