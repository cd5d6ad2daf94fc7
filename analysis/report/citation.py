"""Write the BibTeX entries of what a report rests on: this software, and the study whose logs it redraws."""

import re
from collections.abc import Iterator, Mapping
from importlib import metadata

from analysis.report.latex import latex_escaped
from analysis.study import Study
from unet_scaling.interpreter import CODE_FOLDER, IS_CLONE

# The one place that says how the software and the study it starts from are cited.
CITATION_NAME = "CITATION.cff"
_FIELD = re.compile(r'^ *(?:- )?([a-z-]+): *"?(.+?)"?$', re.MULTILINE)
_NAMES = ("name", "family-names", "alias")


def citation_bibtex(study: Study) -> str:
    """Return the entries as BibTeX, with the version of the software and the commits that the records name.

    Raises OSError where CITATION.cff is missing.
    """
    if IS_CLONE:
        text = (CODE_FOLDER / CITATION_NAME).read_text()
    else:
        text = metadata.distribution("unet-scaling").read_text(f"licenses/{CITATION_NAME}") or ""
    software, _, references = text.partition("\nreferences:\n")
    entries = [_entry("unet-scaling", software, _software_note(software, study))]
    if not study.provenance_known:
        published = references.split("\n  - ")[0]
        note = "The published study whose layout of logs this report reads"
        entries.append(_entry("pytorch-unet-scaling", published, note))
    return "\n".join(entries)


def _entry(key: str, block: str, note: str) -> str:
    values = dict(_FIELD.findall(block))
    fields = {
        "author": " and ".join(f"{{{latex_escaped(name)}}}" for name in _authors(block)),
        "title": f"{{{latex_escaped(values['title'])}}}",
        "url": values.get("repository-code", ""),
        "note": latex_escaped(note),
    }
    return f"@misc{{{key},\n{''.join(_lines(fields))}}}\n"


def _lines(fields: Mapping[str, str]) -> Iterator[str]:
    yield from (f"  {name} = {{{value}}},\n" for name, value in fields.items() if value)


def _authors(block: str) -> list[str]:
    names = [value for name, value in _FIELD.findall(block.partition("authors:")[2]) if name in _NAMES]
    return ["others" if name == "and others" else name for name in names]


def _software_note(block: str, study: Study) -> str:
    """Return "Version 0.1.0, commit 01234567, Apache-2.0"."""
    values = dict(_FIELD.findall(block))
    commits = dict.fromkeys(
        f"commit {header.commit[:10]}{' with uncommitted changes' if header.dirty else ''}"
        for header in study.headers.values()
        if header.commit
    )
    return ", ".join([f"Version {values['version']}", *commits, values["license"]])
