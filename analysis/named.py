"""The folder of a study, as a user names it."""

from pathlib import Path

from unet_scaling.study.config import PROJECT


def named_folder(study: str) -> Path:
    """Return the folder of a study that is given by its folder, or by its name below logs/."""
    below = PROJECT / "logs" / study
    return below if below.is_dir() and not Path(study).is_dir() else Path(study)
