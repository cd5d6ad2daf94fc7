"""The optional parts of the project: folders that may be taken away, imported only on request."""

from collections.abc import Iterator
from contextlib import contextmanager

from unet_scaling.study.errors import UserError

OWN_PACKAGES = ("unet_scaling", "slurm", "analysis")


@contextmanager
def optional_part(asked_by: str, extra: str = "") -> Iterator[None]:
    """Let the import inside name what asked for it where that is missing; UserError.

    `extra` names the packages that this part needs, as environment/install.sh --with takes it.
    """
    try:
        yield
    except ImportError as error:
        name = error.name or ""
        if isinstance(error, ModuleNotFoundError) and name.partition(".")[0] in OWN_PACKAGES:
            raise UserError(f"{asked_by} needs {name.replace('.', '/')}, which this checkout lacks") from None
        if not extra:
            raise
        cure = f"run environment/install.sh --with {extra}"
        raise UserError(f"{asked_by} needs {extra}, which cannot be imported ({error}); {cure}") from None
