"""Keep the generated parts of the README true: `make twins` prints and writes them, a test holds them."""

import difflib
import sys

from unet_scaling.study.config import FRAMEWORKS, PROJECT

README = PROJECT / "README.md"
BEGIN = "<!-- twins: written by make twins -->\n"
END = "<!-- end of twins -->\n"


def twins_diff() -> str:
    """Return the changes from native DDP to Horovod, as a unified diff."""
    names = [f"{framework}/train.py" for framework in FRAMEWORKS[:2]]
    one, other = ((PROJECT / name).read_text().splitlines(keepends=True) for name in names)
    return "".join(difflib.unified_diff(one, other, names[0], names[1], n=1))


def with_diff(readme: str) -> str:
    """The README with the diff of today between its marks."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}```diff\n{twins_diff()}```\n{END}{after}"


if __name__ == "__main__":
    print(twins_diff(), end="")
    if "--write" in sys.argv:
        README.write_text(with_diff(README.read_text()))
