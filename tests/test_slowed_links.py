"""The committed records of slowed clusters with slow links, and the closed form of an all-reduce there.

`logs/link_10mbit` and `logs/link_100mbit`, held against docs/dilation.md.
"""

import statistics

import pytest

from analysis.study import COMPARED, NAMES
from tests.committed import faithful_launches
from tests.evidence import evidence
from unet_scaling.study.config import PROJECT, Framework
from unet_scaling.study.record import Record

BYTES_PER_SECOND = {"10mbit": 10e6 / 8, "100mbit": 100e6 / 8}
MEASURED = [("10mbit", 2), ("100mbit", 2), ("100mbit", 4)]
# Of a frame of 1514 bytes 1448 are the message's, the rest headers of Ethernet, IP, and TCP with its stamps.
FRAME = 1514 / 1448


def records(rate: str, framework: str, workers: int) -> list[Record]:
    found = faithful_launches(evidence(f"link_{rate}"), framework, workers)
    for record in found:
        assert record.header is not None
        assert record.header.link_rate == rate
        assert len({worker.host for worker in record.header.workers}) == workers
    return found


def least_seconds(message_bytes: float, workers: int, rate: str) -> float:
    """Return 2 (N - 1) / N times the bytes of a message over what the link carries in a second."""
    return 2 * (workers - 1) / workers * message_bytes / BYTES_PER_SECOND[rate]


def of_message(record: Record, rate: str, workers: int) -> float:
    """Return what the probe's largest message took over the closed form, without headers."""
    assert record.probe is not None
    return record.probe.median_seconds[-1] / least_seconds(record.probe.bytes[-1], workers, rate)


def of_step(record: Record, rate: str, workers: int) -> float:
    """Return what a step waited for its gradients over the closed form, without headers."""
    (epoch,) = (epoch for epoch in record.epochs if not epoch.warmup)
    assert epoch.budget is not None
    assert record.header is not None
    assert record.header.gradient_bytes is not None
    waited = epoch.budget.wire_seconds / epoch.steps
    return waited / least_seconds(record.header.gradient_bytes, workers, rate)


@pytest.mark.parametrize(("rate", "workers"), MEASURED)
@pytest.mark.parametrize("framework", COMPARED)
def test_an_all_reduce_takes_what_the_closed_form_says(framework: Framework, rate: str, workers: int) -> None:
    launches = records(rate, framework, workers)
    message = statistics.median(of_message(record, rate, workers) for record in launches)
    step = statistics.median(of_step(record, rate, workers) for record in launches)
    assert message == pytest.approx(FRAME, rel=0.05)
    # The first gradients travel while the backward pass goes on.
    assert step < message
    text = (PROJECT / "docs" / "dilation.md").read_text()
    assert f"| {rate} | {workers} | {NAMES[framework]} | {message:.3f} | {step:.3f} |" in text
