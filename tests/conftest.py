"""Fixtures that several test files share."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.cluster import virtual_cluster as virtual_cluster
from tests.faults import undisturbed as undisturbed
from tests.machine import make_locks, the_machine
from tests.studies import make_images

# A busy machine is slow; that is no finding of a property test.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_configure(config: pytest.Config) -> None:
    make_locks(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What must be alone comes first, then what starts many processes: at the end no process waits for long.

    Tests on many real processes get a second try, for the machine may be busy; the summary counts it.
    """
    alone, slow = (
        {item.path for item in items if item.get_closest_marker(name)} for name in ("alone", "slow")
    )
    items.sort(key=lambda item: (item.path not in alone, item.path not in slow))
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test, with the fixtures that are made for it."""
    with the_machine(alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of 47 small images: 38 for training, 9 for evaluation at the default share."""
    return make_images(tmp_path_factory.mktemp("data") / "squares", count=47)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the decoded images of tests out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNET_SCALING_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
