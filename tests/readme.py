"""Keep the generated diff of the twins true: `make twins` prints and writes it, a test holds it."""

import difflib
import re
import sys

from unet_scaling.study.config import PROJECT

README = PROJECT / "README.md"
# A part of a page that is written: the two frameworks, then the diff, up to the end.
PART = re.compile(
    r"(<!-- twins, (\w+) to (\w+): written by make twins -->\n).*?(<!-- end of twins -->\n)", re.S
)


def twins_diff(before: str, after: str) -> str:
    """Return the changes from one framework to the other, as a unified diff."""
    names = [f"{framework}/train.py" for framework in (before, after)]
    one, other = ((PROJECT / name).read_text().splitlines(keepends=True) for name in names)
    return "".join(difflib.unified_diff(one, other, names[0], names[1], n=1))


def with_diffs(page: str) -> str:
    """Return a page with the diffs of today between its marks."""

    def part(found: re.Match[str]) -> str:
        begin, before, after, end = found.groups()
        return f"{begin}```diff\n{twins_diff(before, after)}```\n{end}"

    return PART.sub(part, page)


if __name__ == "__main__":
    print(twins_diff("pytorch_native", "horovod"), end="")
    if "--write" in sys.argv:
        README.write_text(with_diffs(README.read_text()))
