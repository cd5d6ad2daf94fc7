"""Fixtures that several test files share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import virtual_cluster as virtual_cluster
from tests.studies import make_images


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
