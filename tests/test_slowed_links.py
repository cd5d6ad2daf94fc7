"""The committed records of slowed clusters with slow links, and the closed form of an all-reduce there.

`logs/link_10mbit` and `logs/link_100mbit`, held against docs/dilation.md.
"""

import statistics

import pytest

from analysis.loading.fidelity import infidelity
from unet_scaling.study.config import PROJECT
from unet_scaling.study.record import Record, read_record

BYTES_PER_SECOND = {"10mbit": 10e6 / 8, "100mbit": 100e6 / 8}
LAUNCHES = 3
# Of a frame of 1514 bytes 1448 are the message's, the rest headers of Ethernet, IP, and TCP with its stamps.
FRAME = 1514 / 1448


def records(rate: str, framework: str, workers: int) -> list[Record]:
    found = [
        read_record(path)
        for path in (PROJECT / "logs" / f"link_{rate}").glob(f"{framework}-w{workers:02d}-*/run.jsonl")
    ]
    assert len(found) == LAUNCHES
    for record in found:
        assert record.complete
        assert not infidelity(record)
        assert record.header is not None
        assert record.header.link_rate == rate
        assert len({worker.host for worker in record.header.workers}) == workers
    return found


def closed_form_seconds(message_bytes: float, workers: int, rate: str) -> float:
    """Return 2 (N - 1) / N times the bytes, with their headers, over what the link carries in a second."""
    return 2 * (workers - 1) / workers * message_bytes * FRAME / BYTES_PER_SECOND[rate]


def largest_message(record: Record) -> tuple[int, float]:
    assert record.probe is not None
    return record.probe.bytes[-1], record.probe.median_seconds[-1]


def wire_of_a_step(record: Record) -> float:
    (epoch,) = (epoch for epoch in record.epochs if not epoch.warmup)
    assert epoch.budget is not None
    return epoch.budget.wire_seconds / epoch.steps


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("framework", ["pytorch_native", "horovod"])
@pytest.mark.parametrize("rate", BYTES_PER_SECOND)
def test_slow_links_take_what_the_closed_form_says(rate: str, framework: str, workers: int) -> None:
    probed, stepped = [], []
    for record in records(rate, framework, workers):
        size, seconds = largest_message(record)
        probed.append(seconds / closed_form_seconds(size, workers, rate))
        assert record.header is not None
        assert record.header.gradient_bytes is not None
        of_gradients = closed_form_seconds(record.header.gradient_bytes, workers, rate)
        stepped.append(wire_of_a_step(record) / of_gradients)
    assert statistics.median(stepped) == pytest.approx(1, abs=0.05)
