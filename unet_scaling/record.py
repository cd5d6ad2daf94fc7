"""Record the speed of a training script that is not the project's, in a form that its analysis reads.

    from unet_scaling import record

    run = record.begin(study="ours", framework="pytorch_native", model=model, optimizer=optimizer)
    for epoch in range(epochs):
        for images, labels in run.epoch(loader):
            ...  # as before
    run.finish(accuracy=accuracy)

All workers call all three; docs/your_model.md says what is measured.
"""

from pathlib import Path
from typing import Any

from unet_scaling.script_recorder.recording import Recording, RunOptions, begin

__all__ = ["Recording", "RunOptions", "begin", "lightning_callback"]


def lightning_callback(
    *,
    study: str,
    scores: tuple[str, ...] = (),
    options: RunOptions | None = None,
    logs: str | Path = "logs",
) -> Any:  # noqa: ANN401, a class of Lightning, which may not be installed
    """Return a callback for a Lightning Trainer that records its training.

    `scores` name metrics that the module logs; their last values are recorded.
    """
    # Only now: Lightning takes seconds to import, and other scripts have none.
    from unet_scaling.script_recorder.lightning_trainer import RecorderCallback

    return RecorderCallback(study, scores, options or {}, logs)
