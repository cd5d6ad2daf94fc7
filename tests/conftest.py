"""Fixtures that several test files share, and the order of tests."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.cluster import virtual_cluster as virtual_cluster
from tests.faults import undisturbed as undisturbed
from tests.trained import images as images
from tests.trained import session_folder as session_folder
from tests.trained import trained_run as trained_run
from unet_scaling.group.gpus import NVIDIA_DRIVER
from unet_scaling.run.training_state import set_float32_precision

# Tests start hundreds of Python processes; each would else compile the project's modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A busy machine is slow; that is no finding of a property test.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--accept", action="store_true", help="write what was told into tests/golden/messages.txt"
    )


def pytest_configure(config: pytest.Config) -> None:
    # What tests expect of CPU workers holds on a GPU machine, too.
    if config.option.markexpr != "gpu" and NVIDIA_DRIVER.exists():
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with what starts many processes: at the end no test process waits long for another."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True, scope="session")
def _no_power_fails() -> Iterator[None]:
    """Records by the thousand need not reach the disk; what tests start does wait for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Two test processes with as many threads as there are cores would wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture
def restored_precision() -> Iterator[None]:
    yield
    set_float32_precision("fp32")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the decoded images of tests out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNET_SCALING_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _a_run_beside(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What a path's message says of its neighbours is not left to the test that ran before."""
    config = tmp_path_factory.getbasetemp() / "a_run" / "config.json"
    config.parent.mkdir()
    config.write_text('{"study": "neighbour", "run": "a_run", "framework": "horovod"}')


# What commands say when they refuse, one entry a case. A test asserts exit code, key, file and values; the
# sentence is handed to the fixture `told`. `pytest -n 0 --accept tests/...` writes what was told, and
# `git diff` is the review.
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
