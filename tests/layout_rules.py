"""The rules of layout and language, each a function that returns what breaks it.

`python -m tests.layout_rules` lists every breach.
"""

import ast
import re
from collections.abc import Callable, Sequence

from tests.source import (
    Module,
    cycles,
    definitions,
    functions,
    internal_imports,
    modules,
    product,
    public_names,
)
from unet_scaling.study.config import ALL_FRAMEWORKS, PROJECT

# In each list, a folder or module imports only from its own entry and from those before it.
ORDERS = {
    "unet_scaling": (
        ("study",),
        ("group",),
        ("measure",),
        ("data",),
        ("run",),
        ("record",),
        ("model", "metrics", "emulation"),
        ("task",),
        ("divergence", "training", "evaluation", "explain"),
        ("profile",),
        ("doctor",),
    ),
    "analysis": (
        ("arrays", "score", "study", "text", "processes", "restriction"),
        ("facts", "loading"),
        ("statistics",),
        ("findings",),
        ("budget",),
        ("prediction",),
        ("played",),
        ("saliency",),
        ("figures",),
        ("report",),
        ("compare",),
    ),
}
# Each of these is imported only in the twins that adapt it; the wrappers adopt a group of torch's.
# A callback has to be of a class of Lightning.
FRAMEWORK_FILES = {
    "horovod": ("horovod/train.py",),
    "torch.distributed": ("pytorch_native/train.py", "lightning/train.py", "accelerate/train.py"),
    "torch.nn.parallel": ("pytorch_native/train.py", "lightning/train.py"),
    "lightning": ("lightning/train.py", "unet_scaling/record/lightning_trainer.py"),
    "accelerate": ("accelerate/train.py",),
}
# Every figure and every table is made by functions of these names; every program has `main` and its parser;
# scripts that are not the project's call `lightning_callback`.
CONTRACT_NAMES = {
    "lightning_callback",
    "main",
    "command_line",
    "TITLE",
    "SECTION",
    "draw",
    "missing",
    "caption",
    "alternative",
}
# Fields that older code recorded: read so that its records stay readable, and used by nothing.
OF_OLDER_RECORDS = {"gradient_norms"}
MOST_LINES_OF_FUNCTION = 60
MOST_LINES_OF_FILE = 600
UNITS = re.compile(
    r"(^|_)(SECONDS|MINUTES|HOURS|DAYS|MILLISECONDS|BYTES|MEBIBYTES|MEGABYTES|GIBIBYTES|BITS|STEPS|EPOCHS|"
    r"RUNS|REPEATS|WORKERS|CORES|HOSTS|IMAGES|PIXELS|POINTS|INCHES|CHARACTERS|COLUMNS|ROWS|LINES|ATTEMPTS|"
    r"BATCHES|SAMPLES|SHARE|FACTOR|RATIO|VERSION|CODE|SEED|DIGITS|PERCENT|EXIT)(_|$)"
)
NAMED_PATH = re.compile(r"\b((?:unet_scaling|analysis|slurm|tests|benchmarks|docs|environment)/[\w./*-]*\w)")
# A name in capitals stands for one that the reader chooses.
PLACEHOLDER = re.compile(r"/[A-Z]+\.")


def folder_order() -> list[str]:
    """Each folder of unet_scaling and analysis imports only what stands before it, lazy imports included."""
    upward = []
    for package, order in ORDERS.items():
        place = {part: number for number, parts in enumerate(order) for part in parts}
        for module in modules(package):
            own = place.get(part_below(package, module.name))
            for name in sorted(module.imports):
                other = place.get(part_below(package, name))
                if own is not None and other is not None and other > own:
                    upward.append(f"{module.file} imports {name}")
    return upward


def part_below(package: str, name: str) -> str:
    return name.removeprefix(f"{package}.").split(".")[0] if name.startswith(f"{package}.") else ""


def nothing_points_upward() -> list[str]:
    """The library imports neither submission nor analysis, and submission not the analysis."""
    above = {
        "unet_scaling": ("slurm", "analysis", "tests", "benchmarks"),
        "slurm": ("analysis", "tests", "benchmarks"),
        "analysis": ("slurm", "tests", "benchmarks"),
    }
    above |= dict.fromkeys(ALL_FRAMEWORKS, above["unet_scaling"])
    return importing(above)


def tests_and_benchmarks_apart() -> list[str]:
    return importing({"tests": ("benchmarks",), "benchmarks": ("tests",)})


def importing(forbidden: dict[str, tuple[str, ...]]) -> list[str]:
    return [
        f"{module.file} imports {other}"
        for folder, others in forbidden.items()
        for module in modules(folder)
        for other in others
        if module.imports_module(other)
    ]


def frameworks_in_one_file_each() -> list[str]:
    return [
        f"{module.file} imports {framework}"
        for framework, files in FRAMEWORK_FILES.items()
        for module in product()
        if module.imports_module(framework) and module.file not in files
    ]


def libraries_in_their_folders() -> list[str]:
    """pandas stays in analysis/, matplotlib in analysis/figures/; torch is not needed by the analysis."""
    wrong = [(module, "pandas") for module in product() if not module.file.startswith("analysis/")]
    wrong += [
        (module, "matplotlib") for module in product() if not module.file.startswith("analysis/figures/")
    ]
    wrong += [(module, "torch") for module in modules("analysis")]
    return [f"{module.file} imports {library}" for module, library in wrong if module.imports_module(library)]


def no_cycles() -> list[str]:
    return [" and ".join(group) for group in cycles(internal_imports(product()))]


def named_paths_exist() -> list[str]:
    """Every file of the project that a docstring, a comment or a page of documentation names is there."""
    texts = {module.file: module.text for module in (*product(), *modules("benchmarks"))}
    texts |= pages()
    return [
        f"{file}: {name}"
        for file, text in texts.items()
        for name in sorted(set(NAMED_PATH.findall(text)))
        if "." in name.rpartition("/")[2] and not PLACEHOLDER.search(name) and not any(PROJECT.glob(name))
    ]


def pages() -> dict[str, str]:
    """Return the text of every page of documentation, by file."""
    return read_texts("*.md", "docs/*.md", "benchmarks/*.md", "logs/README.md")


def read_texts(*patterns: str) -> dict[str, str]:
    """Return the text of every file of the project that matches a pattern, by file."""
    paths = sorted({path for pattern in patterns for path in PROJECT.glob(pattern)})
    return {path.relative_to(PROJECT).as_posix(): path.read_text() for path in paths}


def no_name_twice() -> list[str]:
    """A public name stands for one thing in the product; the twins have the same names on purpose."""
    code = [module for module in product() if module.path.name != "train.py"]
    return [
        f"{name} in {file}"
        for name, files in definitions(code).items()
        if len(files) > 1 and name not in CONTRACT_NAMES
        for file in files
    ]


def no_name_for_tests_only() -> list[str]:
    """Find public names of the product that only tests use."""
    users = (*product(), *modules("benchmarks"))
    used = frozenset[str]().union(*(module.identifiers for module in users))
    return [
        f"{name} in {module.file}"
        for module in product()
        for name in public_names(module)
        if name not in used | CONTRACT_NAMES and name != "model_config"
    ]


def recorded_fields_are_read() -> list[str]:
    """Every field that a run records is named somewhere in the analysis, alone or with all of its line."""
    study = {module.path.name: module for module in modules("unet_scaling/study")}
    recorded = [study[name] for name in ("record_lines.py", "measurements.py")]
    # What judges a record for analysis and submission alike reads it, too.
    judges = ("disturbance.py", "record_checks.py", "run_state.py", "shared_devices.py")
    readers = (*modules("analysis"), *(study[name] for name in judges))
    known = _names_read(readers) | OF_OLDER_RECORDS
    read_whole = {line for module in recorded for name, line in _lists_of_fields(module) if name in known}
    return [
        f"{record.name}.{field.target.id}"
        for module in recorded
        for record in module.tree.body
        if isinstance(record, ast.ClassDef) and record.name not in read_whole
        for field in record.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if field.target.id not in known
    ]


def _names_read(readers: Sequence[Module]) -> frozenset[str]:
    """Return the names and strings of these modules; the strings also without a prefix that one removes."""
    strings = frozenset[str]().union(*(module.strings for module in readers))
    prefixes = {
        call.args[0].value
        for module in readers
        for call in ast.walk(module.tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if call.func.attr == "removeprefix" and isinstance(call.args[0], ast.Constant)
    }
    bare = {text.removeprefix(str(prefix)) for prefix in prefixes for text in strings}
    return strings.union(bare, *(module.identifiers for module in readers))


def _lists_of_fields(module: Module) -> list[tuple[str, str]]:
    """Return the constants that hold the fields of a whole line, `X = tuple(... Line.model_fields ...)`."""
    return [
        (target.id, node.value.id)
        for statement in module.tree.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
        for node in ast.walk(statement.value)
        if isinstance(node, ast.Attribute)
        and node.attr == "model_fields"
        and isinstance(node.value, ast.Name)
    ]


def numbers_are_explained() -> list[str]:
    """A numeric constant has its unit in its name, or a comment with the reason above it or its group."""
    return [
        f"{module.file}: {name}"
        for module in product()
        for name, node in public_names(module).items()
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        if is_number(node.value) and not UNITS.search(name) and not is_commented(module, node)
    ]


def is_number(value: ast.expr) -> bool:
    """Tell whether an expression is a number: 3, -0.5, 2**20 or 1 / 3."""
    leaves = [node for node in ast.walk(value) if isinstance(node, ast.Constant)]
    operators = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    return (
        bool(leaves)
        and all(isinstance(node, operators) for node in ast.walk(value))
        and all(type(leaf.value) in (int, float) for leaf in leaves)
    )


def is_commented(module: Module, node: ast.stmt) -> bool:
    """Tell whether a comment stands above a statement, or above the lines without a gap before it."""
    lines = module.text.splitlines()
    for line in reversed(lines[: node.lineno - 1]):
        if not line.strip():
            return False
        if line.startswith("#"):
            return True
    return False


def functions_and_files_are_short() -> list[str]:
    """No function has more than 60 lines, no file more than 600."""
    files = [
        f"{module.file}: {lines} lines"
        for module in product()
        if (lines := module.text.count("\n")) > MOST_LINES_OF_FILE
    ]
    return files + [
        f"{module.file}: {function.name} has {lines} lines"
        for module, function in functions(product())
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > MOST_LINES_OF_FUNCTION
    ]


RULES: Sequence[Callable[[], list[str]]] = (
    folder_order,
    nothing_points_upward,
    tests_and_benchmarks_apart,
    frameworks_in_one_file_each,
    libraries_in_their_folders,
    no_cycles,
    named_paths_exist,
    no_name_twice,
    no_name_for_tests_only,
    recorded_fields_are_read,
    numbers_are_explained,
    functions_and_files_are_short,
)

if __name__ == "__main__":
    for rule in RULES:
        breaches = rule()
        print(f"{rule.__name__}: {len(breaches)}", *breaches, sep="\n  ")
