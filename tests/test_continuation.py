"""What an attempt may go on with: the images, machine and software of those that trained before it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.records import digest, make_header, make_point
from unet_scaling.run.checkpoint import require_same_facts
from unet_scaling.study.errors import EXIT_BAD_DATA, EXIT_USAGE, UserError
from unet_scaling.study.record_lines import AttemptFacts, WorkerFacts

FOLDER = Path("/logs/study/run")
Change = Callable[[WorkerFacts], dict[str, object]]


def facts(change: Change = lambda _: {}, **changes: object) -> AttemptFacts:
    """Of an attempt with two workers of two cores; `change` gives other fields of each worker."""
    header = make_header(make_point(workers=2), **changes)
    workers = [worker.model_copy(update=change(worker)) for worker in header.workers]
    return header.model_copy(update={"workers": workers}).attempts()[-1]


def test_the_same_facts_go_on_without_a_word() -> None:
    assert require_same_facts([facts()], facts(attempt=2, started_utc="later"), FOLDER) == []


@pytest.mark.parametrize(
    ("now", "said", "code"),
    [
        (facts(manifest_sha256=digest("other")), f"{digest('manifest')}.*{digest('other')}", EXIT_BAD_DATA),
        (facts(lambda _: {"device": "H100"}), "device: cpu in attempt 1, H100 now", EXIT_USAGE),
        (facts(lambda _: {"cores": [4, 5]}), "cores per worker: 1 in attempt 1, 2 now", EXIT_USAGE),
        (facts(lambda _: {"threads": 3}), "threads: 1 in attempt 1, 3 now", EXIT_USAGE),
        (
            facts(versions={"python": "3.11.2", "torch": "2.14.0"}),
            "torch: 2.13.0 in attempt 1, 2.14.0 now",
            EXIT_USAGE,
        ),
        (facts(versions={"python": "3.11.2"}), "torch: 2.13.0 in attempt 1, none now", EXIT_USAGE),
    ],
)
def test_refuses_to_go_on_with_other_images_or_machines_or_versions(
    now: AttemptFacts, said: str, code: int
) -> None:
    with pytest.raises(UserError, match=said) as refused:
        require_same_facts([facts()], now, FOLDER)
    assert refused.value.exit_code == code
    assert "remove /logs/study/run/checkpoint-* to train from the start" in str(refused.value)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (facts(commit="f" * 40), "the commit differs from attempt 1: 0123456789abcdef"),
        (
            facts(lambda _: {"host": "node9"}),
            r"the set of hosts differs from attempt 1: .*node1.* then, .*node9",
        ),
        (facts(lambda _: {"environment": {"NCCL_ALGO": "Tree"}}), "{} then, .*Tree"),
    ],
)
def test_goes_on_elsewhere_and_with_another_commit_but_says_so(now: AttemptFacts, said: str) -> None:
    remarks = require_same_facts([facts()], now, FOLDER)
    assert len(remarks) == 1
    assert re.search(said, remarks[0])


def test_a_checkpoint_that_does_not_say_its_images_is_refused() -> None:
    with pytest.raises(UserError, match="do not say which images") as refused:
        require_same_facts([], facts(), FOLDER)
    assert refused.value.exit_code == EXIT_BAD_DATA
