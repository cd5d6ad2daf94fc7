"""The frameworks that wrap DDP, as parameters of tests; skipped where their package is not installed."""

from collections.abc import Sequence
from typing import Any

import pytest

from slurm.preflight import is_installed
from unet_scaling.study.config import Framework


def framework_parameter(
    framework: Framework, *others: object, marks: Sequence[pytest.MarkDecorator] = ()
) -> Any:
    """Return a case of a parametrised test: the framework, then other values."""
    reason = f"{framework} is not installed: environment/install.sh --with {framework}"
    missing = pytest.mark.skipif(not is_installed(framework), reason=reason)
    return pytest.param(framework, *others, marks=[missing, *marks])
