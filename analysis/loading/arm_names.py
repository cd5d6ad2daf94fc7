"""Names of the two arms of a study, where its user gives them."""

from collections.abc import Mapping

from unet_scaling.study.config import FRAMEWORKS, Framework
from unet_scaling.study.errors import UserError

# What a legend and a column of a table have room for.
LONGEST_NAME_CHARACTERS = 30
EXAMPLE = '--names "MirroredStrategy,Horovod"'


def arm_names(text: str) -> Mapping[Framework, str]:
    """Return the two names in a text like "MirroredStrategy,Horovod": of log_N.csv, then of log_hvd_N.csv.

    Raises UserError where they are not two different names, printable and not too long.
    """
    names = [part.strip() for part in text.split(",")]
    allowed = f"give two different names with a comma between them, as in {EXAMPLE}"
    if len(names) != len(FRAMEWORKS):
        raise UserError(f"--names has {len(names)} names: {text!r}; {allowed}")
    for name in names:
        if not name.isprintable() or not 1 <= len(name) <= LONGEST_NAME_CHARACTERS:
            raise UserError(
                f"--names: {name!r} is not 1 to {LONGEST_NAME_CHARACTERS} printable characters; {allowed}"
            )
    if names[0].casefold() == names[1].casefold():
        raise UserError(f"--names: both arms are called {names[0]!r}; {allowed}")
    return dict(zip(FRAMEWORKS, names, strict=True))
