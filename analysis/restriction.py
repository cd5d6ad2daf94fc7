"""What stands before every number of a study whose kind restricts what can be said of it."""

from analysis.study import NOT_PROVEN_EQUAL, Study, StudyKind
from analysis.text import capitalised, first_of

# More names of scripts would hide the sentence.
_MOST_NAMED = 3


def with_restriction(kind: StudyKind, caption: str) -> str:
    """Return a caption; before one of restricted runs stand the words for what they are."""
    return after(kind.restricted, f"{kind.meaning}. {caption}") if kind.restricted else caption


def after(words: str, text: str) -> str:
    """Return a sentence; before one on restricted runs stand the words for what they are."""
    return f"{capitalised(words)}: {text}" if words else text


def restriction_notes(study: Study) -> list[str]:
    """Return what to know of every number of a restricted study."""
    scripts = dict.fromkeys(
        f"{header.script} {header.script_sha256[:16]}" if header.script_sha256 else "typed"
        for header in study.scripts.values()
    )
    if scripts:
        return [
            f"recorded in scripts ({first_of(list(scripts), 'script', _MOST_NAMED)}), {NOT_PROVEN_EQUAL}: "
            "model, data, batches, learning rate and score are not recorded: no framework is called faster, "
            "and nothing recommended"
        ]
    emulated = [header for header in study.headers.values() if header.is_emulated]
    profiles = {header.compute.sha256: header.compute for header in emulated if header.compute}
    slowed = {
        f"k = {header.dilation or 1:g}, link {header.link_rate or 'not limited'}" for header in emulated
    }
    return [
        f"emulated: the workers waited instead of computing, by the profile {profile.name} "
        f"(SHA-256 {profile.sha256[:16]}) of {profile.device}, "
        + (f"an assumption: {profile.assumption}" if profile.assumption else "measured")
        + f"; only communication ({'; '.join(sorted(slowed))}), launcher and scheduler are real"
        for profile in profiles.values()
    ]
