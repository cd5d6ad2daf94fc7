"""A torch.profiler trace with the stages' names, for Perfetto, chrome://tracing or TensorBoard."""

import os
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, record_function

from unet_scaling.profile.stages import StageClock, load_by_decoding, load_from_cache
from unet_scaling.profile.steps import PlainTraining
from unet_scaling.profile.subject import Subject

STEP = "training step"


def write_trace(path: Path, subject: Subject, training: PlainTraining, images: int) -> None:
    """So many images loaded both ways, each followed by its step."""
    clock, cached = StageClock(training.device, labelled=True), subject.cached()
    indices = subject.batches[0][:images]
    activities = [ProfilerActivity.CPU]
    if training.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        for load in ("decode", "cache"):
            with record_function(f"loading: {load}"):
                batch = (
                    load_by_decoding(subject, indices, clock)
                    if load == "decode"
                    else load_from_cache(subject, cached, indices, clock)
                )
            with record_function(STEP):
                training.step(*batch)
    hidden = path.with_name(f".{os.getpid()}.{path.name}")  # the suffix says whether it is compressed
    profiler.export_chrome_trace(str(hidden))
    hidden.replace(path)
