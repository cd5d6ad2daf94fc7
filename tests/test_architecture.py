"""docs/architecture.md says what to read first and follows five ways through files that are there."""

import re

from unet_scaling.study.config import PROJECT

PAGE = (PROJECT / "docs" / "architecture.md").read_text()
ROWS = re.findall(r"^\| `([\w/]+\.py)` \| (.+) \|$", PAGE, flags=re.MULTILINE)
NAME = re.compile(r"`(?:\w+\.)?(\w+)`")


def test_the_page_says_what_to_read_first_and_follows_five_ways() -> None:
    assert PAGE.count("\n## ") == 1 + 5
    assert len(ROWS) > 50


def test_every_name_stands_in_the_file_of_its_row() -> None:
    missing = [
        f"{file}: {name}"
        for file, where in ROWS
        for name in NAME.findall(where)
        if not re.search(rf"\b{name}\b", (PROJECT / file).read_text())
    ]
    assert missing == []
