"""Lines of the records of runs that nobody trained, for benchmarks of the analysis."""

import hashlib
from collections.abc import Sequence

from unet_scaling.study.config import RunConfig
from unet_scaling.study.record_lines import Epoch, Header, Result, WorkerFacts

# 0.1 % of IoU is still 1,000 pixels.
PIXELS = 1_000_000


def digest(text: str) -> str:
    """Return a SHA-256 that depends on the text."""
    return hashlib.sha256(text.encode()).hexdigest()


def header_of(config: RunConfig, train_images: int) -> Header:
    """Return the header of a run whose workers have one CPU core of one host each."""
    return Header(
        config=config,
        config_sha256=config.digest(),
        attempt=1,
        started_utc="2025-01-31T12:00:00Z",
        commit="0123456789abcdef0123456789abcdef01234567",
        dirty=False,
        versions={"python": "3.11.2", "torch": "2.13.0"},
        transport={"controller": "MPI"} if config.framework == "horovod" else {"backend": "gloo"},
        job={},
        manifest_sha256=digest("manifest"),
        train_images=train_images,
        test_images=12,
        initial_weights_sha256=digest(f"weights of seed {config.seed}"),
        workers=[_worker(number) for number in range(config.workers)],
    )


def _worker(number: int) -> WorkerFacts:
    return WorkerFacts(
        worker=number,
        host="node1",
        process=1000 + number,
        device="cpu",
        device_uuid="",
        cores=[number],
        threads=1,
    )


def result_of(header: Header, epochs: Sequence[Epoch], iou: float) -> Result:
    """Return the evaluation after the last epoch, which misses foreground to give this IoU to six digits."""
    true_positive = round(iou * PIXELS)
    return Result(
        epochs=len(epochs),
        training_seconds=sum(epoch.seconds for epoch in epochs),
        images=header.test_images,
        true_positive=true_positive,
        false_positive=0,
        false_negative=PIXELS - true_positive,
        true_negative=9 * PIXELS,
        iou=true_positive / PIXELS,
        dice=2 * true_positive / (PIXELS + true_positive),
        image_iou=true_positive / PIXELS,
        seconds=0.5,
        weights_sha256=digest(f"final weights of {header.config.run}"),
    )
