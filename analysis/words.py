"""Say findings in words: the templates of analysis/templates, those of sentences and those of pages."""

import math
import re
from functools import cache, partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis.stats import CONFIDENCE, FEWEST_REPEATS, RECOMMENDED_REPEATS
from analysis.study import NAMES, NOT_PROVEN_EQUAL, SECONDS_PER_HOUR, Study, StudyKind
from analysis.text import (
    Row,
    bracketed,
    capitalised,
    clean,
    count,
    first_of,
    interval_of,
    listed,
    number,
    percent,
    sentence,
    unit_of_value,
    with_interval,
)
from unet_scaling.study.command_line import CALLED

COMMAND_AFTER = re.compile(rf": (?={re.escape(CALLED)} )")
INTERVAL = re.compile(r"\[([-+\d.,%]+), ([-+\d.,%]+)\]")


def lines(template: str, **values: object) -> list[str]:
    """Return what a template says, a sentence a line, clean; an unknown name raises."""
    text = _environment(is_page=False).get_template(f"{template}.jinja").render(**values)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def page(template: str, **values: object) -> str:
    """Return a page. Every value is escaped but the project's own SVG; an unknown name raises."""
    return _environment(is_page=True).get_template(f"{template}.html.jinja").render(**values)


def device_of(study: Study) -> str:
    """Return what a worker is called: "GPU" where the header of every used run names one for each worker."""
    devices = [worker.device for header in study.headers.values() for worker in header.workers]
    return "GPU" if devices and "cpu" not in devices else "worker"


def cost(row: Row, device: str, *, bounded: bool = False) -> str:
    """Return what one training costs, `bounded` with its interval: "12.3 [12.1, 12.4] GPU-hours"."""
    size, unit = unit_of_value(SECONDS_PER_HOUR * row["worker_hours"], is_long=True)
    return f"{_in_units(row, 'worker_hours', size / SECONDS_PER_HOUR, bounded)} {device}-{unit}"


def _duration(row: Row, column: str, *, bounded: bool = False) -> str:
    """Return a duration of a row in the unit that reads best, `bounded` with its interval: "2.5 min"."""
    size, unit = unit_of_value(row[column])
    return f"{_in_units(row, column, size, bounded)} {unit}"


def _in_units(row: Row, column: str, size: float, bounded: bool) -> str:
    return with_interval(row, column, "~3", size) if bounded else number(row[column] / size, "~3")


def _signed(difference: float) -> str:
    """Return a difference of IoU with its sign, "-0.002"; "±0.000" where it rounds to that."""
    text = number(difference, "+.3f")
    return "±0.000" if text in ("+0.000", "-0.000") else text


def _percent_faster(ratio: float) -> float:
    """Return by how many per cent the faster one of two is faster."""
    return 100 * math.expm1(abs(math.log(ratio)))


@cache
def _environment(*, is_page: bool) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        undefined=StrictUndefined,
        # What shows plain texts as Markdown or LaTeX escapes them.
        autoescape=is_page,  # noqa: S701
        # A foreign text stays on its line.
        finalize=None if is_page else clean,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=is_page,
    )
    environment.filters |= {
        "bracketed": lambda ends, form: bracketed(ends[0], ends[1], form),
        "capitalised": capitalised,
        "clean": clean,
        "cost": cost,
        "count": lambda number_of, thing: count(int(number_of), thing),
        "drawn": Markup,
        "duration": _duration,
        "faster": _percent_faster,
        "interval": interval_of,
        "listed": listed,
        "number": number,
        "pasted": lambda step: [*COMMAND_AFTER.split(step, 1), ""][:2],
        "percent": percent,
        "sentence": sentence,
        "shown": with_interval,
        "signed": _signed,
        # No line ends inside an interval.
        "unbroken": partial(INTERVAL.sub, "[\\1,\N{NO-BREAK SPACE}\\2]"),
        "times": lambda speedup: f"{number(speedup, '~2')}x",
    }
    environment.tests["nan"] = lambda value: value != value
    environment.globals |= {
        "NAMES": NAMES,
        "FEWEST": FEWEST_REPEATS,
        "RECOMMENDED": RECOMMENDED_REPEATS,
        "CONFIDENCE": CONFIDENCE,
    }
    return environment


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
