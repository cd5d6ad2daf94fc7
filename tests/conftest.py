"""Fixtures that several test files share, and the order of tests."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.browser import browser as browser
from tests.cluster import virtual_cluster as virtual_cluster
from tests.faults import undisturbed as undisturbed
from tests.messages import told as told
from tests.trained import images as images
from tests.trained import session_folder as session_folder
from tests.trained import trained_run as trained_run

# Tests start hundreds of Python processes; each would else compile the project's modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A busy machine is slow; that is no finding of a property test.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--accept", action="store_true", help="write what was told into tests/golden/messages.txt"
    )


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
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the decoded images of tests out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNET_SCALING_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
