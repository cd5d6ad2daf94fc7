"""When the last gradient of a step is averaged, from the moments at which each became ready on one worker.

A message is sent once all its gradients are ready and the message before it has ended: end_b = max(ready_b,
end_{b-1}) + seconds_b. What lies behind the last gradient is exposed: the rest hides behind the backward
pass. No number here is fitted to measured step times of several workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array, Integers
from analysis.loading.ping_pongs import Link, all_reduce_messages, negotiation_messages

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

    def latency_of_probe(self, workers: int, short_seconds: float) -> float:
        """Return the latency of a message where an all-reduce of next to no bytes takes so long by itself."""
        return short_seconds / all_reduce_messages(workers)

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

    def latency_of_probe(self, workers: int, short_seconds: float) -> float:
        """Return the latency of a message where an all-reduce of next to no bytes takes so long by itself.

        It waits for half a cycle in the mean and is negotiated before it is sent: what the probe timed holds
        that already.
        """
        sent_seconds = max(short_seconds - self.period_seconds / 2, 0.0)
        return sent_seconds / (negotiation_messages(workers) + all_reduce_messages(workers))

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
        queue = _Queue.of(gradients)
        negotiation = link.negotiation(workers)
        period = max(self.period_seconds, negotiation)
        next_start = np.full(queue.steps, -offset * period)
        end = np.zeros(queue.steps)
        sent = np.zeros(queue.steps, dtype=np.int64)
        while (is_open := sent < queue.parameters).any():
            start = _first_start(next_start, queue.next_ready(sent), period)
            agreed = np.where(is_open, queue.ready_until(start), sent)
            sending = self._sending_seconds(agreed - sent, queue.bytes_between(sent, agreed), workers, link)
            end = np.where(is_open, start + negotiation + sending, end)
            next_start = np.maximum(start + period, end)
            sent = agreed
        return end

    def _sending_seconds(self, gradients: Integers, size: Array, workers: int, link: Link) -> Array:
        """Return the seconds of the messages of a cycle: their bytes, and the latency of each."""
        latency = link.all_reduce(workers, 0.0)
        pace = link.all_reduce(workers, size) - latency
        return np.asarray(self._messages(gradients, size) * latency + pace)

    def _messages(self, gradients: Integers, size: Array) -> Integers:
        """Return how many messages so many gradients of this size together take."""
        if self.fusion_bytes == 0:
            return gradients
        return np.minimum(gradients, np.ceil(size / self.fusion_bytes).astype(np.int64))


@dataclass(frozen=True)
class _Queue:
    """The gradients of each step in the order in which they get ready.

    ready       seconds, [steps, parameters]
    sent_bytes  of none, of the first one, of the first two ... of them, [steps, parameters + 1]
    """

    ready: Array
    sent_bytes: Array

    @classmethod
    def of(cls, gradients: Gradients) -> "_Queue":
        order = np.argsort(gradients.ready, axis=1, kind="stable")
        in_order = np.take_along_axis(gradients.ready, order, axis=1)
        return cls(in_order, np.pad(np.cumsum(gradients.size[order], axis=1), ((0, 0), (1, 0))))

    @property
    def steps(self) -> int:
        return len(self.ready)

    @property
    def parameters(self) -> int:
        return int(self.ready.shape[1])

    def next_ready(self, sent: Integers) -> Array:
        """Return when the first gradient that is not sent is ready, [steps]; of none the last one."""
        return _at(self.ready, np.minimum(sent, self.parameters - 1))

    def ready_until(self, moment: Array) -> Integers:
        """Return how many gradients are ready at a moment of each step, [steps]."""
        return np.asarray((self.ready <= moment[:, None]).sum(axis=1))

    def bytes_between(self, sent: Integers, upto: Integers) -> Array:
        """Return the bytes of the gradients from one place in the order to another, [steps]."""
        return _at(self.sent_bytes, upto) - _at(self.sent_bytes, sent)


def _at(table: Array, places: Integers) -> Array:
    """Return the value of each row at its place, [rows]."""
    return np.take_along_axis(table, places[:, None], axis=1)[:, 0]


def _first_start(next_start: Array, ready: Array, period: float) -> Array:
    """Return the first start of a cycle, from the next one on, at which this gradient is ready, [steps]."""
    whole = np.ceil(np.maximum(ready - next_start, 0) / period) * period if period else 0.0
    # Rounding must not let a cycle begin before what it waits for.
    return np.asarray(np.maximum(next_start + whole, ready))


Schedule = Buckets | Cycles


def expected_slowest(seconds: Array, workers: int) -> Array:
    """Return the expected maximum of N independent draws from each sample, [..., values] -> [...].

    Of n ordered values the k-th is the maximum with probability (k/n)^N - ((k-1)/n)^N.
    """
    values = seconds.shape[-1]
    chances = np.diff((np.arange(values + 1) / values) ** workers)
    return np.asarray(np.sort(seconds, axis=-1) @ chances)
