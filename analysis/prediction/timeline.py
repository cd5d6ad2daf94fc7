"""When the last gradient of a step is averaged, from the moments at which each became ready on one worker.

A message is sent once all its gradients are ready and the message before it has ended: end_b = max(ready_b,
end_{b-1}) + seconds_b. What lies behind the last gradient is exposed: the rest hides behind the backward
pass. No number here is fitted to measured step times of several workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array, Integers
from analysis.loading.ping_pongs import Link

MEBIBYTE_BYTES = 2**20
# What torch 2.13 takes where the study names no size: a small first bucket, so that sending begins early.
FIRST_BUCKET_BYTES = 1 * MEBIBYTE_BYTES
BUCKET_BYTES = 25 * MEBIBYTE_BYTES
# What Horovod 0.28 takes where the study names neither.
CYCLE_SECONDS = 0.001
FUSION_BYTES = 128 * MEBIBYTE_BYTES
# A gradient meets a cycle of Horovod at any moment of it: so many, evenly spaced, stand for all.
CYCLE_OFFSETS_SAMPLES = 4


@dataclass(frozen=True)
class Gradients:
    """The gradients of some steps of one worker.

    ready  seconds from the start of the backward pass until each gradient was ready, [steps, parameters]
    size   bytes of each as it is sent, [parameters]
    """

    ready: Array
    size: Array


@dataclass(frozen=True)
class Buckets:
    """Native DDP: gradients travel in buckets, each closed by the gradient that fills it.

    `caps_bytes` are those of the first, second, ... bucket; the last holds for all further ones.
    """

    caps_bytes: tuple[float, ...] = (FIRST_BUCKET_BYTES, BUCKET_BYTES)

    def exposed_seconds(self, gradients: Gradients, workers: int, link: Link) -> Array:
        """Return what each step waits for the network behind its last gradient, [steps]."""
        end = np.zeros(len(gradients.ready))
        for bucket in fill_buckets(gradients, self.caps_bytes):
            size = float(gradients.size[bucket].sum())
            end = np.maximum(gradients.ready[:, bucket].max(axis=1), end) + link.all_reduce(workers, size)
        return np.asarray(end - gradients.ready.max(axis=1))


def fill_buckets(gradients: Gradients, caps_bytes: Sequence[float]) -> list[Integers]:
    """Return the parameters of each bucket, in the order in which gradients become ready.

    As torch builds them again after the first step: a bucket takes gradients until it has its size or more.
    """
    order = np.argsort(gradients.ready.mean(axis=0), kind="stable")
    buckets: list[list[int]] = [[]]
    filled = 0.0
    for parameter in order.tolist():
        if buckets[-1] and filled >= caps_bytes[min(len(buckets), len(caps_bytes)) - 1]:
            buckets.append([])
            filled = 0.0
        buckets[-1].append(parameter)
        filled += float(gradients.size[parameter])
    return [np.array(bucket, dtype=np.int64) for bucket in buckets]


@dataclass(frozen=True)
class Cycles:
    """Horovod: once in a cycle the workers agree on what all have ready, and send that in one message.

    A cycle begins when the one before it has ended, and not earlier than `period_seconds` after its start;
    every cycle negotiates. Messages hold at most `fusion_bytes`, each one gradient where that is 0.
    With `groups`, gradients are sent in so many groups of parameters, each whole.
    """

    period_seconds: float = CYCLE_SECONDS
    fusion_bytes: float = FUSION_BYTES
    groups: int | None = None

    def exposed_seconds(self, gradients: Gradients, workers: int, link: Link) -> Array:
        """Return what each step waits behind its last gradient, [steps]: the mean over moments in a cycle."""
        grouped = self._grouped(gradients)
        offsets = (np.arange(CYCLE_OFFSETS_SAMPLES) + 0.5) / CYCLE_OFFSETS_SAMPLES
        ends = [self._end(grouped, workers, link, offset) for offset in offsets]
        return np.asarray(np.mean(ends, axis=0) - gradients.ready.max(axis=1))

    def _grouped(self, gradients: Gradients) -> Gradients:
        """Return the gradients with each as ready as the last of its group."""
        if self.groups is None:
            return gradients
        ready = gradients.ready.copy()
        for group in np.array_split(np.arange(ready.shape[1]), min(self.groups, ready.shape[1])):
            ready[:, group] = ready[:, group].max(axis=1, keepdims=True)
        return Gradients(ready, gradients.size)

    def _end(self, gradients: Gradients, workers: int, link: Link, offset: float) -> Array:
        """Return when the last message of each step has ended, [steps]; `offset` is a share of a cycle."""
        order = np.argsort(gradients.ready, axis=1, kind="stable")
        ready = np.take_along_axis(gradients.ready, order, axis=1)
        sent_bytes = np.pad(np.cumsum(gradients.size[order], axis=1), ((0, 0), (1, 0)))
        rows = np.arange(len(ready))
        negotiation = link.negotiation(workers)
        period = max(self.period_seconds, negotiation)
        tick = np.full(len(ready), -offset * period)
        end = np.zeros(len(ready))
        done = np.zeros(len(ready), dtype=np.int64)
        while (open_steps := done < ready.shape[1]).any():
            start = _first_tick(tick, ready[rows, np.minimum(done, ready.shape[1] - 1)], period)
            upto = np.where(open_steps, (ready <= start[:, None]).sum(axis=1), done)
            size = sent_bytes[rows, upto] - sent_bytes[rows, done]
            busy = negotiation + self._messages(upto - done, size) * link.all_reduce(workers, 0.0)
            busy += link.all_reduce(workers, size) - link.all_reduce(workers, 0.0)
            end = np.where(open_steps, start + busy, end)
            tick = np.maximum(start + period, end)
            done = upto
        return end

    def _messages(self, gradients: Integers, size: Array) -> Integers:
        """Return how many messages so many gradients of this size together take."""
        if self.fusion_bytes == 0:
            return gradients
        return np.minimum(gradients, np.ceil(size / self.fusion_bytes).astype(np.int64))


def _first_tick(tick: Array, ready: Array, period: float) -> Array:
    """Return the first start of a cycle at which this gradient is ready; `tick` is the next start of one."""
    whole = np.ceil(np.maximum(ready - tick, 0) / period) * period if period else 0.0
    # Rounding must not let a cycle begin before what it waits for.
    return np.asarray(np.maximum(tick + whole, ready))


Schedule = Buckets | Cycles


def expected_slowest(seconds: Array, workers: int) -> Array:
    """Return the expected maximum of N independent draws from each sample, [..., values] -> [...].

    Of n ordered values the k-th is the maximum with probability (k/n)^N - ((k-1)/n)^N.
    """
    values = seconds.shape[-1]
    chances = np.diff((np.arange(values + 1) / values) ** workers)
    return np.asarray(np.sort(seconds, axis=-1) @ chances)
