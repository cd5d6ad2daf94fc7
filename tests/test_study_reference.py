"""Page, schemas and explanations say of the keys of study and cluster files what their readers do."""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from slurm.cluster import read_cluster
from slurm.commands.explain import explanation, known_words, overview
from slurm.reference import REFERENCE_PAGE, SCHEMAS, FileKind, file_kinds, page_with_keys, schema
from unet_scaling.base.errors import UserError
from unet_scaling.study.config import PROJECT
from unet_scaling.study.study_file import read_study

STUDY, CLUSTER = file_kinds()
KINDS = [STUDY, CLUSTER]
READERS: dict[str, Callable[[Path], object]] = {"study": read_study, "cluster": read_cluster}
VALID = {
    "study": """
workers = [1, 2]
[data]
folder = "images"
image_height = 64
image_width = 64
[training]
epochs = 2
""",
    "cluster": """
launcher = "srun"
gpus_per_node = 2
cores_per_worker = 4
time = "02:00:00"
""",
}
# Of a task that a file defines.
TASK_STUDY = """
workers = [1, 2]
[task]
file = "my_task.py"
[training]
epochs = 2
"""
ALL_KEYS = [(kind, key) for kind in KINDS for keys in kind.tables().values() for key in keys]


def with_key(valid: str, table: str, line: str) -> str:
    """Return the text of a valid file with this line instead of its own of the same key."""
    key = line.partition(" =")[0]
    text = "\n" + valid
    top, _, tables = text.partition("\n[")
    sections = {"": top} | dict(part.split("]\n", 1) for part in tables.split("\n[") if part)
    kept = [own for own in sections.get(table, "").splitlines() if own.partition(" =")[0] != key]
    sections[table] = "\n".join([*kept, line])
    return sections.pop("") + "".join(f"\n[{name}]\n{body}\n" for name, body in sections.items())


def accepted_by_reader(kind: FileKind, text: str, folder: Path) -> bool:
    path = folder / "file.toml"
    path.write_text(text)
    try:
        READERS[kind.name](path)
    except UserError:
        return False
    return True


def accepted_by_schema(kind: FileKind, text: str) -> bool:
    described = json.loads(kind.schema_path.read_text())
    validator = jsonschema.Draft202012Validator(described)
    return bool(validator.is_valid(tomllib.loads(text)))


def test_the_committed_page_and_schemas_are_those_of_the_models() -> None:
    assert page_with_keys(REFERENCE_PAGE.read_text()) == REFERENCE_PAGE.read_text(), "run make docs"
    for kind in KINDS:
        assert kind.schema_path.read_text() == schema(kind), "run make docs"
        jsonschema.Draft202012Validator.check_schema(json.loads(schema(kind)))


@pytest.mark.parametrize(("folder", "kind"), [("studies", STUDY), ("clusters", CLUSTER)])
def test_every_committed_file_names_its_schema_and_agrees_with_it(
    folder: str, kind: FileKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORK", "/work-folder")
    paths = sorted((PROJECT / "slurm" / folder).glob("*.toml"))
    assert paths
    for path in paths:
        text = path.read_text()
        named = re.match(r"#:schema (\S+)\n", text)
        assert named, path
        assert (path.parent / named[1]).resolve() == SCHEMAS / f"{kind.name}.json"
        assert accepted_by_schema(kind, text), path
        assert folder == "clusters" or read_study(path).configs()


# What else a key needs in order to have an effect.
LOCAL = "synchronise_every = 4"
OUTER = (LOCAL, "outer_momentum = 0.9")
NEEDED = {
    "loader_workers": ['loading = "decode"'],
    "subgroup_size": [LOCAL],
    "outer_momentum": [LOCAL],
    "outer_learning_rate": OUTER,
    "outer_nesterov": OUTER,
    "stale_rate_factor": ["staleness = 1"],
}


@pytest.mark.parametrize(("kind", "key"), ALL_KEYS, ids=lambda part: getattr(part, "dotted", ""))
def test_every_key_has_its_meaning_and_an_example_that_reader_and_schema_accept(
    kind: FileKind, key: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORK", str(tmp_path))
    assert key.meaning
    assert key.example
    assert key.allowed
    lines = [key.example, *NEEDED.get(key.name, ())]
    (tmp_path / "my_task.py").touch()
    valid = TASK_STUDY if key.table == "task" else VALID[kind.name]
    text = with_key(valid, key.table, "\n".join(lines))
    assert accepted_by_schema(kind, text)
    assert accepted_by_reader(kind, text, tmp_path)


WRONG: list[tuple[FileKind, str, str]] = [
    (STUDY, "", "repeat = 3"),
    (STUDY, "", "workers = [1, 1]"),
    (STUDY, "", 'frameworks = ["deepspeed"]'),
    (STUDY, "", 'name = "../up"'),
    (STUDY, "data", "test_share = 1.0"),
    (STUDY, "training", "epoch = 3"),
    (STUDY, "training", 'precision = ["fp32", "fp64"]'),
    (STUDY, "training", "learning_rate = inf"),
    (STUDY, "other", "key = 1"),
    (CLUSTER, "", 'launcher = "torchrun"'),
    (CLUSTER, "", 'partition = "a b"'),
    (CLUSTER, "", 'options = ["--x; rm"]'),
    (CLUSTER, "", "nodes = 3"),
    (CLUSTER, "environment", 'lower = "x"'),
    (CLUSTER, "environment", 'GOOD = "a\\nb"'),
]


@pytest.mark.parametrize(("kind", "table", "line"), WRONG, ids=lambda part: getattr(part, "name", part))
def test_the_schema_refuses_what_the_reader_refuses(
    kind: FileKind, table: str, line: str, tmp_path: Path
) -> None:
    text = with_key(VALID[kind.name], table, line)
    assert not accepted_by_reader(kind, text, tmp_path)
    assert not accepted_by_schema(kind, text)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_schema_requires_what_the_reader_requires(kind: FileKind, tmp_path: Path) -> None:
    for line in filter(None, VALID[kind.name].splitlines()):
        text = VALID[kind.name].replace(f"{line}\n", "")
        assert accepted_by_reader(kind, text, tmp_path) == accepted_by_schema(kind, text) is False, line


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("training.rate_scalin", "did you mean training.rate_scaling"),
        ("partitoin", r"did you mean partition\?"),
        ("zzzz", "unet-scaling explain lists them all"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UserError, match=near):
        explanation(name)


def test_the_overview_names_every_key_once() -> None:
    words = [line.split()[0] for line in overview().splitlines() if line.startswith("  ")]
    assert sorted(words) == sorted(key.name for _, key in ALL_KEYS)
    assert {key.dotted for _, key in ALL_KEYS} <= set(known_words())
