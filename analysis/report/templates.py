"""The templates of the pages: they escape every text, and share the style sheet."""

import re
from functools import cache, partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis.text import capitalised, clean, count, sentence

INTERVAL = re.compile(r"\[([-+\d.,%]+), ([-+\d.,%]+)\]")


def rendered(template: str, **values: object) -> str:
    """Return a page. Every value is escaped but the project's own SVG; an unknown name raises."""
    return _templates().get_template(template).render(**values)


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # No line ends inside an interval.
    unbroken = partial(INTERVAL.sub, "[\\1,\N{NO-BREAK SPACE}\\2]")
    named = {"capitalised": capitalised, "clean": clean, "count": count, "sentence": sentence}
    environment.filters |= named | {"drawn": Markup, "unbroken": unbroken}
    return environment
