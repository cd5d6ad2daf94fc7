"""The frameworks that wrap DDP, as parameters of tests; skipped where their package is not installed."""

from typing import Any

import pytest

from slurm.preflight import is_installed
from unet_scaling.study.config import ALL_FRAMEWORKS, WRAPPERS, Framework


def _parameter(framework: Framework) -> Any:
    reason = f"{framework} is not installed: environment/install.sh --with {framework}"
    return pytest.param(framework, marks=pytest.mark.skipif(not is_installed(framework), reason=reason))


each_wrapper = pytest.mark.parametrize("framework", [_parameter(name) for name in WRAPPERS])
each_other_framework = pytest.mark.parametrize(
    "framework", [_parameter(name) for name in ALL_FRAMEWORKS if name != "pytorch_native"]
)
