"""Emulated runs in words: what stands before every number that they give, and what they cannot show.

The workers of an emulated run waited instead of computing; only their communication was real.
"""

from collections.abc import Iterator

from analysis.study import Study
from analysis.text import capitalised
from unet_scaling.study.record_lines import ComputeFacts, Header

# What a study that is emulated says nothing about.
NOTHING_LEARNED = "every run is emulated: nothing is learned, so that there is no loss and no IoU"


def emulation_words(study: Study) -> str:
    """Return "emulated, k = 7, link 10gbit, profile v100_like.toml"; empty where workers computed."""
    parts = list(dict.fromkeys(part for header in _emulated(study) for part in _parts(header)))
    return ", ".join(["emulated", *parts]) if parts else ""


def with_emulation(words: str, caption: str) -> str:
    """Return a caption; before one of emulated runs stand the words for what they are."""
    return f"{capitalised(words)}: waits stand for computing. {caption}" if words else caption


def after(words: str, text: str) -> str:
    """Return a sentence; before one on emulated runs stand the words for what they are."""
    return f"{capitalised(words)}: {text}" if words else text


def emulation_notes(study: Study) -> list[str]:
    """Return what to know of every emulated number: by which profile the workers waited, and of what."""
    profiles = {header.compute.sha256: header.compute for header in _emulated(study) if header.compute}
    return [_origin(profile) for profile in profiles.values()]


def _emulated(study: Study) -> Iterator[Header]:
    return (header for header in study.headers.values() if header.is_emulated)


def _parts(header: Header) -> Iterator[str]:
    """Yield by what the cluster was slowed, its links and the profile."""
    yield f"k = {header.dilation or 1:g}"
    if header.link_rate:
        yield f"link {header.link_rate}"
    if header.compute:
        yield f"profile {header.compute.name}"


def _origin(profile: ComputeFacts) -> str:
    source = f"an assumption: {profile.assumption}" if profile.assumption else "measured"
    known = f"profile {profile.name} (SHA-256 {profile.sha256[:16]}) of {profile.device}, {source}"
    real = "only communication, launcher and scheduler are real"
    return f"emulated: the workers waited instead of computing, by the {known}; {real}"
