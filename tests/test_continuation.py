"""What an attempt may go on with: the images, machine and software of those that trained before it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image, ImageOps

from tests.faults import Fault, attempt, fault_point
from tests.records import digest, make_header, make_point
from tests.studies import make_images
from unet_scaling.data.checking import check_folder
from unet_scaling.data.manifest import write_manifest
from unet_scaling.run.continuation import require_same_facts
from unet_scaling.study.errors import EXIT_BAD_DATA, EXIT_RESUME, EXIT_USAGE, UserError
from unet_scaling.study.record import attempt_records, read_record
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
        (facts(manifest_sha256=digest("other")), "trained on other images: attempt 1 had", EXIT_BAD_DATA),
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


def test_both_manifests_are_named() -> None:
    with pytest.raises(UserError, match=f"{digest('manifest')}.*{digest('other')}"):
        require_same_facts([facts()], facts(manifest_sha256=digest("other")), FOLDER)


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


@pytest.mark.slow
def test_a_resumed_run_names_its_attempts_and_takes_no_other_images(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", count=47)
    run = tmp_path / "run"
    point = fault_point(images, "pytorch_native", workers=1)
    stopped = attempt(run, point, Fault("SIGUSR2", 5, worker=0, every_step_is_safe=True))
    assert stopped.codes == {0: EXIT_RESUME}
    picture = images / "images" / "003.png"
    manifest = images / "manifest.json"
    before = {path: path.read_bytes() for path in (picture, manifest, images / "manifest.json.sha256")}
    ImageOps.flip(Image.open(picture)).save(picture)
    write_manifest(check_folder(images, "255"), manifest)
    refused = attempt(run, point)
    assert refused.codes == {0: EXIT_BAD_DATA}
    assert "were trained on other images: attempt 1 had the manifest" in refused.state.reason
    for path, content in before.items():
        path.write_bytes(content)
    resumed = attempt(run, point).record
    assert resumed.complete, resumed.problems
    assert resumed.header is not None
    assert [facts.attempt for facts in resumed.header.attempts()] == [1, 3]
    (earlier,) = resumed.header.earlier
    assert earlier.manifest_sha256 == resumed.header.manifest_sha256
    assert earlier.workers[0].process != resumed.header.workers[0].process
    assert earlier.workers[0].environment == resumed.header.workers[0].environment is not None
    assert resumed.header.resumed is not None
    assert resumed.header.resumed.epoch == len(read_record(attempt_records(run)[0]).epochs)
