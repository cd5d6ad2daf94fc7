"""What commands say when they refuse: tests/golden/messages.txt, one entry a case, written by the tests.

A test asserts exit code, key, file and values; the sentence is handed to the fixture `told`, which
compares it with the entry of this test. `pytest -n 0 --accept tests/...` writes what was told, and `git diff`
is the review.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
MESSAGES = PROJECT / "tests" / "golden" / "messages.txt"


def stored() -> dict[str, str]:
    """Return the text of every case: a line with its name, then its lines, indented."""
    entries: dict[str, list[str]] = {}
    case = ""
    for line in MESSAGES.read_text().splitlines() if MESSAGES.exists() else []:
        if line.startswith("    "):
            entries[case].append(line.removeprefix("    "))
        else:
            case = line
            entries[case] = []
    return {case: "\n".join(lines) for case, lines in entries.items()}


def accept(case: str, text: str) -> None:
    """Write one case among the others."""
    entries = stored() | {case: text}
    blocks = (
        "\n".join([name, *(f"    {line}" for line in entries[name].split("\n"))]) for name in sorted(entries)
    )
    MESSAGES.write_text("\n".join(blocks) + "\n")


@pytest.fixture
def told(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Compare a text with what messages.txt holds for this test (and `part`, where a test hears several)."""

    def compare(text: str, part: str = "") -> None:
        plain = text.strip().replace(str(tmp_path), "TMP").replace(str(PROJECT), "PROJECT")
        case = f"{request.path.name}: {request.node.name}{f' {part}' if part else ''}"
        if request.config.getoption("--accept"):
            accept(case, plain)
        assert stored().get(case) == plain, f"pytest -n 0 --accept {request.path}, then git diff {MESSAGES}"

    return compare
