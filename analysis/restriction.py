"""Studies whose report is restricted, in words: what stands before every number, and what they cannot show.

The workers of an emulated run waited instead of computing; only their communication was real. The runs of
scripts (unet_scaling/record) are real, but nothing shows that two scripts do the same work.
"""

from analysis.study import Study
from analysis.text import capitalised, first_of
from unet_scaling.study.record_lines import Header

# Why a study says nothing about what a training gives: IoU, loss and cost.
NOTHING_LEARNED = "every run is emulated: nothing is learned, so that there is no loss and no IoU"
SPEED_ALONE = "every run is one of a script, which records its speed alone"
NOT_PROVEN_EQUAL = "arms not proven equal"
# With what the words for a restriction begin, and what that means.
MEANINGS = {
    "emulated": "waits stand for computing",
    "recorded in scripts": "each arm is measured by itself, and no two are compared",
}
# More names of scripts would hide the sentence.
_MOST_NAMED = 3


def restriction_words(study: Study) -> str:
    """Return "emulated, k = 7, link 10gbit, profile v100_like.toml"; empty without a restriction."""
    if study.is_of_scripts:
        return f"recorded in scripts, {NOT_PROVEN_EQUAL}"
    parts = ["emulated"] if study.is_emulated else []
    for header in _emulated(study):
        parts.append(f"k = {header.dilation or 1:g}")
        parts += [f"link {header.link_rate}"] if header.link_rate else []
        parts += [f"profile {header.compute.name}"] if header.compute else []
    return ", ".join(dict.fromkeys(parts))


def with_restriction(words: str, caption: str) -> str:
    """Return a caption; before one of restricted runs stand the words for what they are."""
    return after(words, f"{MEANINGS[words.partition(',')[0]]}. {caption}") if words else caption


def after(words: str, text: str) -> str:
    """Return a sentence; before one on restricted runs stand the words for what they are."""
    return f"{capitalised(words)}: {text}" if words else text


def restriction_notes(study: Study) -> list[str]:
    """Return what to know of every number of a restricted study."""
    if study.is_of_scripts:
        scripts = dict.fromkeys(
            f"{header.script} {header.script_sha256[:16]}" if header.script_sha256 else "typed"
            for header in study.scripts.values()
        )
        return [
            f"recorded in scripts ({first_of(list(scripts), 'script', _MOST_NAMED)}), {NOT_PROVEN_EQUAL}: "
            "model, data, batches, learning rate and score are not recorded: no framework is called faster, "
            "and nothing recommended"
        ]
    profiles = {header.compute.sha256: header.compute for header in _emulated(study) if header.compute}
    return [
        f"emulated: the workers waited instead of computing, by the profile {profile.name} "
        f"(SHA-256 {profile.sha256[:16]}) of {profile.device}, "
        + (f"an assumption: {profile.assumption}" if profile.assumption else "measured")
        + "; only communication, launcher and scheduler are real"
        for profile in profiles.values()
    ]


def not_learned(study: Study) -> str:
    """Return why nothing is said of what a training gives; empty where it is."""
    if study.is_of_scripts:
        return SPEED_ALONE
    return NOTHING_LEARNED if study.is_emulated else ""


def _emulated(study: Study) -> list[Header]:
    return [header for header in study.headers.values() if header.is_emulated]
