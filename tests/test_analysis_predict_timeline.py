"""The timeline of a step's messages: closed forms, and an event simulation that knows none of them."""

import numpy as np
import pytest

from analysis.arrays import Array
from analysis.loading.ping_pongs import Link
from analysis.prediction.timeline import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    Buckets,
    Cycles,
    Gradients,
    Schedule,
    expected_slowest,
    fill_buckets,
)
from analysis.prediction.timeline_evidence import link_of_probe

LINK = Link(latency_seconds=1e-4, bytes_per_second=1e8)
MIB = 2**20


def gradients(ready: list[float], sizes: list[float]) -> Gradients:
    return Gradients(np.array([ready]), np.array(sizes, dtype=np.float64))


def events_of_buckets(ready: Array, sizes: Array, caps: list[float], workers: int, link: Link) -> float:
    """The exposed time of one step, found by walking through the arrivals of gradients one by one."""
    network_free = 0.0
    held = 0.0
    number = 0
    for place in np.argsort(ready):
        held += sizes[place]
        if held >= caps[min(number, len(caps) - 1)] or place == np.argsort(ready)[-1]:
            begin = max(network_free, ready[place])
            hops = 2 * (workers - 1)
            network_free = begin + sum(
                link.latency_seconds + held / workers / link.bytes_per_second for _ in range(hops)
            )
            held = 0.0
            number += 1
    return network_free - float(ready.max())


def events_of_cycles(ready: Array, sizes: Array, cycles: Cycles, workers: int, link: Link) -> float:
    """The exposed time of one step, found by running through all cycles, the idle ones too."""
    negotiation = 2 * int(np.ceil(np.log2(workers))) * link.latency_seconds
    period = max(cycles.period_seconds, negotiation)
    ends = []
    for offset in (0.125, 0.375, 0.625, 0.875):
        tick = -offset * period
        sent = np.zeros(len(ready), dtype=bool)
        end = 0.0
        while not sent.all():
            now = (ready <= tick) & ~sent
            busy = negotiation
            if now.any():
                size = float(sizes[now].sum())
                busy += 2 * (workers - 1) * (link.latency_seconds + size / workers / link.bytes_per_second)
                end = tick + busy
            sent |= now
            tick = max(tick + period, tick + busy)
        ends.append(end)
    return float(np.mean(ends) - ready.max())


def test_one_bucket_is_exposed_whole() -> None:
    """2 (N - 1) latencies, and 2 (N - 1) / N of the bytes over the bandwidth."""
    (exposed,) = Buckets().exposed_seconds(gradients([0.1, 0.2], [1e5, 2e5]), 4, LINK)
    assert exposed == pytest.approx(6 * 1e-4 + 1.5 * 3e5 / 1e8)


def test_a_message_that_ends_before_the_next_gradient_is_hidden() -> None:
    ready = gradients([0.1, 0.5], [1e6, 1e3])
    (exposed,) = Buckets((1e6,)).exposed_seconds(ready, 2, LINK)
    assert exposed == pytest.approx(2e-4 + 1e3 / 1e8)


def test_a_message_that_lasts_keeps_the_next_waiting_the_knee() -> None:
    """The first takes N - 1 steps of 10 ms; behind the backward pass stays what did not fit into it."""
    ready = gradients([0.1, 0.15], [1e7, 1e3])
    for workers in (2, 3, 8):
        (exposed,) = Buckets((1e7,)).exposed_seconds(ready, workers, LINK)
        first = 0.1 + LINK.all_reduce(workers, 1e7)
        expected = max(first, 0.15) + LINK.all_reduce(workers, 1e3) - 0.15
        assert exposed == pytest.approx(expected)


def test_few_workers_hide_a_message_that_many_do_not() -> None:
    """2 (N - 1) latencies of the first message fit into 0.15 s up to N = 751: a curve with a knee there."""
    ready = gradients([0.0, 0.15], [1e5, 1e3])
    hidden = {
        n: Buckets((1e5,)).exposed_seconds(ready, n, LINK)[0] - LINK.all_reduce(n, 1e3) for n in (2, 700)
    }
    assert hidden == pytest.approx(dict.fromkeys(hidden, 0.0))
    (exposed,) = Buckets((1e5,)).exposed_seconds(ready, 2000, LINK)
    assert exposed == pytest.approx(LINK.all_reduce(2000, 1e5) - 0.15 + LINK.all_reduce(2000, 1e3))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("workers", [2, 5, 14])
def test_buckets_agree_with_an_event_simulation(seed: int, workers: int) -> None:
    random = np.random.default_rng(seed)
    ready = random.uniform(0, 0.05, 30)
    sizes = random.lognormal(10, 2, 30)
    caps = [MIB / 8, MIB / 4]
    link = Link(float(random.uniform(1e-6, 1e-3)), float(random.uniform(1e7, 1e9)))
    (exposed,) = Buckets(tuple(caps)).exposed_seconds(Gradients(ready[None], sizes), workers, link)
    assert exposed == pytest.approx(events_of_buckets(ready, sizes, caps, workers, link))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("workers", [2, 5, 14])
def test_cycles_agree_with_an_event_simulation(seed: int, workers: int) -> None:
    random = np.random.default_rng(seed)
    ready = random.uniform(0, 0.05, 30)
    sizes = random.lognormal(10, 2, 30)
    cycles = Cycles(period_seconds=float(random.choice([0.0007, 0.003, 0.02])))
    link = Link(float(random.uniform(1e-6, 1e-3)), float(random.uniform(1e7, 1e9)))
    (exposed,) = cycles.exposed_seconds(Gradients(ready[None], sizes), workers, link)
    assert exposed == pytest.approx(events_of_cycles(ready, sizes, cycles, workers, link), abs=1e-9)


def test_every_step_of_a_profile_has_its_own_exposed_time() -> None:
    random = np.random.default_rng(1)
    ready = random.uniform(0, 0.05, (7, 30))
    sizes = random.lognormal(10, 2, 30)
    together = Cycles().exposed_seconds(Gradients(ready, sizes), 6, LINK)
    alone = [Cycles().exposed_seconds(Gradients(row[None], sizes), 6, LINK)[0] for row in ready]
    assert together == pytest.approx(alone)


def test_without_fusion_every_gradient_is_a_message() -> None:
    both_ready = gradients([0.0, 0.0], [1e3, 1e3])
    fused, single = (Cycles(fusion_bytes=size).exposed_seconds(both_ready, 4, LINK)[0] for size in (MIB, 0))
    assert single - fused == pytest.approx(6 * LINK.latency_seconds)


def test_a_full_fusion_buffer_is_sent_in_parts() -> None:
    both_ready = gradients([0.0, 0.0], [1e3, 1e3])
    fused, parts = (Cycles(fusion_bytes=size).exposed_seconds(both_ready, 4, LINK)[0] for size in (2e3, 1e3))
    assert parts - fused == pytest.approx(6 * LINK.latency_seconds)


def test_a_group_waits_for_its_last_gradient() -> None:
    ready = gradients([0.1, 0.2, 0.0, 0.3], [1e6, 1e6, 1e6, 1e6])
    alone, grouped = (Cycles(groups=groups).exposed_seconds(ready, 2, LINK)[0] for groups in (None, 1))
    assert grouped > alone + 0.005
    assert grouped == pytest.approx(Cycles().exposed_seconds(gradients([0.3], [4e6]), 2, LINK)[0], abs=1e-9)


def test_a_longer_cycle_costs_about_half_of_what_it_is_longer() -> None:
    one = gradients([0.1], [1e3])
    short, long = (Cycles(period_seconds=each).exposed_seconds(one, 2, LINK)[0] for each in (0.001, 0.021))
    assert long - short == pytest.approx(0.01, rel=0.6)


def test_the_default_buckets_are_those_of_torch() -> None:
    """As torch 2.13 built them of 12 linear layers of 200 x 200, by its own log (bias before weight)."""
    layer = [800.0, 160_000.0]
    ready = gradients([float(place) for place in range(24)], layer * 12)
    sizes = [int(ready.size[bucket].sum()) for bucket in fill_buckets(ready, Buckets().caps_bytes)]
    assert sizes == [1_125_600, 804_000]
    assert (FIRST_BUCKET_BYTES, BUCKET_BYTES) == (MIB, 25 * MIB)
    half = fill_buckets(ready, (MIB / 2,))
    assert [int(ready.size[bucket].sum()) for bucket in half] == [643_200] * 3


def test_buckets_fill_as_gradients_become_ready() -> None:
    ready = gradients([0.3, 0.2, 0.1], [4.0, 4.0, 4.0])
    assert [bucket.tolist() for bucket in fill_buckets(ready, (8.0,))] == [[2, 1], [0]]


def test_the_slowest_of_many_draws() -> None:
    sample = np.array([1.0, 2.0, 4.0])
    assert expected_slowest(sample, 1) == pytest.approx(sample.mean())
    assert expected_slowest(sample, 2) == pytest.approx((1 * 1 + 2 * 3 + 4 * 5) / 9)
    assert expected_slowest(sample, 1000) == pytest.approx(4.0)
    random = np.random.default_rng(1)
    drawn = random.choice(sample, (200_000, 5)).max(axis=1).mean()
    assert expected_slowest(sample, 5) == pytest.approx(drawn, rel=0.002)


@pytest.mark.parametrize("workers", [2, 4, 14])
@pytest.mark.parametrize("schedule", [Buckets(), Cycles(period_seconds=0.004)])
def test_a_probe_gives_the_link_by_which_the_schedule_takes_as_long(schedule: Schedule, workers: int) -> None:
    """A message alone: with Horovod it waits for half a cycle in the mean, and is negotiated."""
    link = Link(2e-4, 1e8)
    sizes = np.array([4.0, 2e6])
    messages = [Gradients(np.zeros((1, 1)), size) for size in sizes[:, None]]
    seconds = np.concatenate([schedule.exposed_seconds(alone, workers, link) for alone in messages])
    found = link_of_probe(schedule, workers, sizes, seconds)
    assert found.latency_seconds == pytest.approx(link.latency_seconds, rel=1e-2)
    assert found.bytes_per_second == pytest.approx(link.bytes_per_second, rel=1e-2)
