"""The table of frameworks: one row for each, with all that the project has to know of it.

A further wrapper of DDP is its training script NAME/train.py, its name in `Framework` and its row here, and
its lines in pyproject.toml.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, create_model

from unet_scaling import CODE_FOLDER, IS_CLONE
from unet_scaling.base.validation import StrictModel
from unet_scaling.study.options import SHARED_TABLES, HorovodKnobs, NativeKnobs

Framework = Literal["pytorch_native", "horovod", "lightning", "accelerate"]
Knobs = NativeKnobs | HorovodKnobs
ModelType = TypeVar("ModelType", bound=BaseModel)
PROGRAMS_FOLDER = CODE_FOLDER if IS_CLONE else CODE_FOLDER / "unet_scaling" / "programs"
TORCH = "torch"


@dataclass(frozen=True)
class FrameworkRow:
    """What differs between frameworks.

    `knobs` is the model of the options that only it has, in the table of a study file that has its name.
    `package` is what has to be installed, and the module that its script imports. `makes_group` is the call
    by which a training script makes the group of workers; `title_of_scripts` is its title in studies of such
    scripts. `other_names` are those that tables of others give it, as letters without spaces. `marker` is one
    of analysis/figures/style.py; `dark_colour` is for pages on a dark screen.
    """

    title: str
    short_title: str
    title_of_scripts: str
    knobs: type[NativeKnobs] | type[HorovodKnobs]
    package: str
    makes_group: str
    other_names: tuple[str, ...]
    marker: str
    colour: str
    text_colour: str
    dark_colour: str


FRAMEWORK_ROWS: dict[Framework, FrameworkRow] = {
    "pytorch_native": FrameworkRow(
        title="native DDP",
        short_title="DDP",
        title_of_scripts="native DDP",
        knobs=NativeKnobs,
        package=TORCH,
        makes_group="torch.distributed.init_process_group",
        other_names=("native", "nativeddp", "ddp", "pytorch", "pytorchddp", "torch", "torchddp"),
        marker="o",
        colour="#004488",
        text_colour="#004488",
        dark_colour="#7db3ff",
    ),
    "horovod": FrameworkRow(
        title="Horovod",
        short_title="Horovod",
        title_of_scripts="Horovod",
        knobs=HorovodKnobs,
        package="horovod",
        makes_group="horovod.torch.init",
        other_names=("hvd",),
        marker="s",
        colour="#d97200",
        text_colour="#a85600",
        dark_colour="#ffab4a",
    ),
    "lightning": FrameworkRow(
        title="Lightning Fabric",
        short_title="Fabric",
        title_of_scripts="Lightning",  # scripts of Fabric and of the Trainer are one arm
        knobs=NativeKnobs,
        package="lightning",
        makes_group="Fabric.launch",
        other_names=("lightningfabric", "fabric", "pytorchlightning"),
        marker="^",
        colour="#a3246b",
        text_colour="#a3246b",
        dark_colour="#f58ac2",
    ),
    "accelerate": FrameworkRow(
        title="Accelerate",
        short_title="Accelerate",
        title_of_scripts="Accelerate",
        knobs=NativeKnobs,
        package="accelerate",
        makes_group="Accelerator",
        other_names=("huggingfaceaccelerate", "hfaccelerate"),
        marker="D",
        colour="#3f9f6f",
        text_colour="#2b7a52",
        dark_colour="#6fd0a0",
    ),
}
ALL_FRAMEWORKS = tuple(FRAMEWORK_ROWS)
# The pair that every installation has, every study compares by default, and every report is about.
FRAMEWORKS: tuple[Framework, Framework] = ("pytorch_native", "horovod")
# They wrap DDP, and are compared with it where a study asks for them.
WRAPPERS = tuple(framework for framework in ALL_FRAMEWORKS if framework not in FRAMEWORKS)
FRAMEWORK_TITLES = {framework: row.title for framework, row in FRAMEWORK_ROWS.items()}
# As an error and the documentation name them: 'pytorch_native' (DDP), 'horovod', ...
_NAMED = [
    f"'{framework}'" if row.short_title.lower() == framework else f"'{framework}' ({row.short_title})"
    for framework, row in FRAMEWORK_ROWS.items()
]
FRAMEWORK_WORDS = f"{', '.join(_NAMED[:-1])} or {_NAMED[-1]}"
# What wrappers need beside torch.
WRAPPER_PACKAGES = {FRAMEWORK_ROWS[wrapper].package for wrapper in WRAPPERS} - {TORCH}
OPTION_TABLES: dict[str, type[StrictModel]] = {
    **SHARED_TABLES,
    **{framework: row.knobs for framework, row in FRAMEWORK_ROWS.items()},
}


def training_script(framework: Framework) -> Path:
    """Return the program that trains with a framework."""
    return PROGRAMS_FOLDER / framework / "train.py"


def with_table_of_each_framework(
    field: Callable[[FrameworkRow], tuple[Any, Any]],
) -> Callable[[type[ModelType]], type[ModelType]]:
    """Return a decorator that gives a model one more field for each framework, which has its name.

    `field` returns type and default of a framework's, as pydantic's create_model takes them.
    """

    def extend(model: type[ModelType]) -> type[ModelType]:
        fields: dict[str, Any] = {name: field(row) for name, row in FRAMEWORK_ROWS.items()}
        name, module, words = model.__name__, model.__module__, model.__doc__
        return create_model(name, __base__=model, __module__=module, __doc__=words, **fields)

    return extend
