"""The allocator's settings, in real processes that read them."""

import os
import subprocess
import sys

import pytest

from slurm.local import launch
from unet_scaling.group.allocator import GLIBC_PREFIX, KEEP_MEMORY, PRELOAD
from unet_scaling.study.config import PROJECT


def without_settings() -> dict[str, str]:
    """This environment as if nobody had set anything of the allocator."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in KEEP_MEMORY and not name.startswith(GLIBC_PREFIX)
    }


def test_the_local_launcher_sets_them_for_its_workers(tmp_path_factory: pytest.TempPathFactory) -> None:
    output = tmp_path_factory.mktemp("launch") / "output.log"
    program = "import os, json; print(json.dumps(dict(os.environ)))"
    assert launch(["-c", program], 1, output, cores_each=None) == 0
    for name, value in KEEP_MEMORY.items():
        assert f'"{name}": "{value}"' in output.read_text()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's variables")
def test_the_record_gets_the_settings_and_what_was_preloaded_indeed() -> None:
    program = "from unet_scaling.group.allocator import allocator_settings; print(allocator_settings())"
    plain = {name: value for name, value in without_settings().items() if name != PRELOAD}
    chosen = {"MALLOC_TRIM_THRESHOLD_": "1000", PRELOAD: "/no/such/liballocator.so:libutil.so.1"}
    for environment, expected in (
        ({}, {}),
        (chosen, {"MALLOC_TRIM_THRESHOLD_": "1000", PRELOAD: "libutil.so.1"}),
    ):
        command = [sys.executable, "-c", program]
        told = subprocess.run(
            command, cwd=PROJECT, env=plain | environment, capture_output=True, text=True, check=True
        )
        assert told.stdout.strip() == str(expected)
