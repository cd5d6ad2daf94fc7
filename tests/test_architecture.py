"""docs/architecture.md says what to read first and follows three values through files that are there."""

import re

from unet_scaling.study.config import PROJECT

PAGE = (PROJECT / "docs" / "architecture.md").read_text()
FILES = re.findall(r"^\| `([\w/]+\.py)` \| .+ \|$", PAGE, flags=re.MULTILINE)


def test_the_page_says_what_to_read_first_and_follows_three_values() -> None:
    assert PAGE.count("\n## ") == 1 + 3
    assert len(FILES) > 30
    assert [file for file in FILES if not (PROJECT / file).is_file()] == []
