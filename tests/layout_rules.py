"""The rules of layout and language, each a function that returns what breaks it.

`python -m tests.layout_rules` lists every breach.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.capabilities import CAPABILITIES
from unet_scaling.study.config import PROJECT
from unet_scaling.study.frameworks import ALL_FRAMEWORKS, FRAMEWORK_ROWS, WRAPPERS

PRODUCT = ("unet_scaling", *ALL_FRAMEWORKS, "slurm", "analysis", "environment")
Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
# In each list, a folder or module imports only from its own entry and from those before it.
ORDERS = {
    "unet_scaling": (
        ("base",),
        ("study",),
        ("format",),
        ("group",),
        ("measure",),
        ("data",),
        ("run",),
        ("script_recorder",),
        ("record",),
        ("model", "emulation"),
        ("task",),
        ("training",),
        ("norm_statistics", "saliency", "strategies", "inference"),
        ("training_loop",),
        ("profile", "doctor", "verify_task"),
        ("subcommands", "completion"),
    ),
    "slurm": (
        ("scheduler",),
        ("cluster", "submissions"),
        ("render", "after_run", "reference", "study_folder"),
        ("states",),
        ("one_job", "launch"),
        ("submit",),
        ("commands", "virtual"),
    ),
    "analysis": (
        ("study",),
        ("text",),
        ("read", "numbers"),
        ("judge",),
        ("causes", "tables_of_others", "older_logs"),
        ("predict",),
        ("played", "saliency", "strategies"),
        ("assembly",),
        ("figures",),
        ("report",),
        ("compare",),
    ),
}
# What no file below these folders imports.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    "unet_scaling": ("slurm", "analysis", "tests", "benchmarks"),
    "slurm": ("analysis", "tests", "benchmarks"),
    "analysis": ("slurm", "tests", "benchmarks", "torch"),
    "tests": ("benchmarks",),
}
FORBIDDEN |= dict.fromkeys(ALL_FRAMEWORKS, FORBIDDEN["unet_scaling"])
TWINS = tuple(f"{framework}/train.py" for framework in ALL_FRAMEWORKS)
# Where alone wrappers of DDP are named. A callback of the script recorder has to be of a class of Lightning.
NAMES_WRAPPERS = ("unet_scaling/study/frameworks.py", "unet_scaling/script_recorder/lightning_trainer.py")
# Where alone the product imports these: frameworks in the twins that adapt them, the wrappers of which adopt
# a group of torch's.
ONLY_IN = {
    **{
        row.package: (f"{framework}/train.py", *NAMES_WRAPPERS)
        for framework, row in FRAMEWORK_ROWS.items()
        if row.package != "torch"
    },
    "torch.distributed": TWINS,
    "torch.nn.parallel": TWINS,
    "pandas": ("analysis/",),
    "matplotlib": ("analysis/figures/",),
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
# Attributes of a study that differ by its kind, of whatever they are read, and those that other objects have
# under the same name.
OF_A_KIND = (
    "compares", "unlearned", "restricted", "silent", "provenance_known", "maps_only", "all_left_out",
    "with_maps",
)  # fmt: skip
PARTS_OF_A_STUDY = ("kind", "played", "scripts", "subject")
KINDS_STAND_IN = ("analysis/assembly/", "analysis/study.py")
MOST_LINES_OF_FUNCTION = 60
MOST_LINES_OF_FILE = 600
NAMED_PATH = re.compile(r"\b((?:unet_scaling|analysis|slurm|tests|benchmarks|docs|environment)/[\w./*-]*\w)")
# A name in capitals stands for one that the reader chooses.
PLACEHOLDER = re.compile(r"/[A-Z]+\.")


@dataclass(frozen=True)
class Module:
    """One Python file of the project."""

    path: Path
    text: str

    @property
    def file(self) -> str:
        return self.path.relative_to(PROJECT).as_posix()

    @property
    def name(self) -> str:
        """Its dotted name, as imports write it."""
        parts = self.path.relative_to(PROJECT).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def imports(self) -> frozenset[str]:
        """Every name that is imported anywhere in the file, with its module, as `package.module.name`."""
        names = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.file}:{node.lineno} imports relatively"
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
        return frozenset(names)

    @cached_property
    def identifiers(self) -> frozenset[str]:
        """Every name, attribute and imported name that the code uses, but for where it defines one."""
        names = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                names.add(node.id)
            elif isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.ImportFrom):
                names |= {alias.name for alias in node.names}
        return frozenset(names)

    def imports_module(self, module: str) -> bool:
        """Tell whether the file imports a module, or something inside it."""
        return any(f"{name}.".startswith(f"{module}.") for name in self.imports)


@lru_cache
def modules(*folders: str) -> tuple[Module, ...]:
    """Return the Python files below these folders of the project, in alphabetical order."""
    paths = [path for folder in folders for path in sorted((PROJECT / folder).rglob("*.py"))]
    return tuple(Module(path, path.read_text()) for path in paths)


def product() -> tuple[Module, ...]:
    return modules(*PRODUCT)


def functions(code: Sequence[Module]) -> Iterator[tuple[Module, Function]]:
    for module in code:
        for node in ast.walk(module.tree):
            if isinstance(node, FUNCTION):
                yield module, node


def public_names(module: Module) -> dict[str, ast.stmt]:
    """Return the statements that define classes, functions and constants of a module, by public name."""
    names: dict[str, ast.stmt] = {}
    for node in module.tree.body:
        if isinstance(node, (*FUNCTION, ast.ClassDef)):
            names[node.name] = node
        elif isinstance(node, ast.Assign):
            names |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[node.target.id] = node
    return {name: node for name, node in names.items() if not name.startswith("_")}


def folder_order() -> list[str]:
    """Each room imports only what stands before it, lazy imports included; every room has its place."""
    upward = []
    for package, order in ORDERS.items():
        place = {part: number for number, parts in enumerate(order) for part in parts}
        upward += [f"{package}/{room} has no place" for room in sorted(arrows(package).keys() - place)]
        for module in modules(package):
            own = place.get(part_below(package, module.name))
            for name in sorted(module.imports):
                other = place.get(part_below(package, name))
                if own is not None and other is not None and other > own:
                    upward.append(f"{module.file} imports {name}")
    return upward


def part_below(package: str, name: str) -> str:
    return name.removeprefix(f"{package}.").split(".")[0] if name.startswith(f"{package}.") else ""


def arrows(package: str) -> dict[str, set[str]]:
    """Return for each room of a package, a folder or file directly below it, the rooms that it imports."""
    rooms = {part_below(package, module.name) for module in modules(package)} - {"", "__main__"}
    found: dict[str, set[str]] = {room: set() for room in rooms}
    for module in modules(package):
        if (room := part_below(package, module.name)) in rooms:
            found[room] |= {part_below(package, name) for name in module.imports} & rooms - {room}
    return found


def plan_of(package: str) -> str:
    """Return how many rooms, floors and arrows a package has, and how many arrows are not to its files."""
    found = arrows(package)
    floors: dict[str, int] = {}
    try:
        for room in TopologicalSorter(found).static_order():
            floors[room] = 1 + max((floors[below] for below in found[room]), default=0)
    except CycleError as error:
        return f"{package}: a circle of rooms: {' '.join(error.args[1])}"
    folders = {room for room in found if (PROJECT / package / room).is_dir()}
    between = sum(len(found[room] & folders) for room in folders)
    return (
        f"{package}: {len(found)} rooms, {len(folders)} of them folders, on {max(floors.values())} floors, "
        f"with {sum(map(len, found.values()))} arrows, {between} of them between folders"
    )


def nothing_points_upward() -> list[str]:
    """The library imports neither submission nor analysis; the analysis, above submission, needs no torch."""
    return [
        f"{module.file} imports {other}"
        for folder, others in FORBIDDEN.items()
        for module in modules(folder)
        for other in others
        if module.imports_module(other)
    ]


def capabilities_are_imported_late() -> list[str]:
    """No module outside of a capability imports it at its top level: it may be taken away."""
    return [
        f"{module.file} imports {part}"
        for each in CAPABILITIES.values()
        for part in each.modules
        for module in product()
        if not any(Path(module.file).is_relative_to(path) for path in each.paths)
        for node in module.tree.body
        if isinstance(node, ast.ImportFrom | ast.Import)
        for name in (getattr(node, "module", None), *(alias.name for alias in node.names))
        if f"{name}.".startswith(f"{part}.")
    ]


def packages_in_their_places() -> list[str]:
    """Each framework is imported in its twin, pandas in analysis/, matplotlib in analysis/figures/."""
    return [
        f"{module.file} imports {package}"
        for package, places in ONLY_IN.items()
        for module in product()
        if module.imports_module(package) and not module.file.startswith(places)
    ]


def wrappers_are_rows_of_a_table() -> list[str]:
    """No code names a wrapper of DDP but the table of frameworks and its own training script."""
    texts = {module.file: module.text for module in product() if module.file not in (*TWINS, *NAMES_WRAPPERS)}
    others = (*PROJECT.glob("*/templates/*.*"), *PROJECT.glob("slurm/*.sh"))
    texts |= {path.relative_to(PROJECT).as_posix(): path.read_text() for path in others}
    return [
        f"{file} names {wrapper}"
        for file, text in texts.items()
        for wrapper in WRAPPERS
        if re.search(rf"\b{wrapper}\b", text)
    ]


def no_cycles() -> list[str]:
    """No modules of the product import each other, directly or through others."""
    names = {module.name for module in product()}

    def imported(name: str) -> str:
        while name not in names and name:
            name = name.rpartition(".")[0]
        return name

    graph = {module.name: {imported(name) for name in module.imports} - {module.name} for module in product()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" imports ".join(error.args[1])]
    return []


def named_paths_exist() -> list[str]:
    """Every file of the project that a docstring, a comment or a page of documentation names is there."""
    texts = {module.file: module.text for module in (*product(), *modules("benchmarks"))}
    where = ("*.md", "docs/**/*.md", "benchmarks/*.md", "logs/*.md")
    pages = (path for name in where for path in PROJECT.glob(name))
    texts |= {path.relative_to(PROJECT).as_posix(): path.read_text() for path in pages}
    return [
        f"{file}: {name}"
        for file, text in texts.items()
        for name in sorted(set(NAMED_PATH.findall(text)))
        if "." in name.rpartition("/")[2] and not PLACEHOLDER.search(name) and not any(PROJECT.glob(name))
    ]


def tests_read_committed_logs_only() -> list[str]:
    """No test names anything of logs/ but the evidence: the rest are a user's own studies."""
    of_a_user = re.compile(r'(PROJECT|parents\[\d\]) / "logs"(?! / "evidence")')
    return [module.file for module in modules("tests") if of_a_user.search(module.text)]


def no_name_twice() -> list[str]:
    """A public name stands for one thing in the product; the twins have the same names on purpose."""
    code = [module for module in product() if module.path.name != "train.py"]
    times = Counter(name for module in code for name in public_names(module))
    return [
        f"{name} in {module.file}"
        for module in code
        for name in public_names(module)
        if times[name] > 1 and name not in CONTRACT_NAMES
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


def branches_on_a_kind_of_study() -> list[str]:
    """Return conditions of the analysis that ask what kind a study is, or which parts it has.

    A kind answers for itself: in analysis/study.py, where it is an object, and in analysis/assembly/.
    """
    found = []
    for module in modules("analysis"):
        if module.file.startswith(KINDS_STAND_IN):
            continue
        counted: set[ast.AST] = set()
        for node in ast.walk(module.tree):
            for condition in conditions(node):
                if condition not in counted and asks_for_a_kind(condition):
                    counted |= set(ast.walk(condition))
                    found.append(f"{module.file}:{condition.lineno}: {ast.unparse(condition)}")
    return found


def conditions(node: ast.AST) -> list[ast.expr]:
    """Return the conditions of a statement or expression, the whole before its parts."""
    if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
        return [node.test]
    if isinstance(node, ast.comprehension):
        return node.ifs
    return [node] if isinstance(node, ast.BoolOp) else []


def asks_for_a_kind(condition: ast.expr) -> bool:
    """Tell whether a condition reads what only a study of some kind has."""
    for node in ast.walk(condition):
        name, _, owner = ast.unparse(node).rpartition(".")[::-1]
        if not isinstance(node, ast.Attribute | ast.Name):
            continue
        if name in OF_A_KIND or (name in PARTS_OF_A_STUDY and owner.split(".")[-1] == "study"):
            return True
        if name == "headers" and node in tested(condition):
            return True
    return False


def tested(condition: ast.expr) -> list[ast.expr]:
    """Return what a condition takes for true or false, without the `and`, `or` and `not` around it."""
    if isinstance(condition, ast.BoolOp):
        return [each for value in condition.values for each in tested(value)]
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        return tested(condition.operand)
    return [condition]


def functions_of_a_whole_study() -> list[str]:
    """Return functions of the analysis that take all tables of a study, not those that they read."""
    return [
        f"{module.file}:{function.lineno}: {function.name}"
        for module, function in functions(modules("analysis"))
        if any(
            ast.unparse(argument.annotation) in ("Study", "Study | None")
            for argument in ast.walk(function.args)
            if isinstance(argument, ast.arg) and argument.annotation
        )
    ]


# What there should be little of, and the most that there may be: these numbers only fall.
BUDGETS: Mapping[Callable[[], list[str]], int] = {
    branches_on_a_kind_of_study: 25,
    functions_of_a_whole_study: 95,
}
RULES: Sequence[Callable[[], list[str]]] = (
    folder_order,
    nothing_points_upward,
    capabilities_are_imported_late,
    packages_in_their_places,
    wrappers_are_rows_of_a_table,
    no_cycles,
    named_paths_exist,
    tests_read_committed_logs_only,
    no_name_twice,
    no_name_for_tests_only,
    functions_and_files_are_short,
)

if __name__ == "__main__":
    print(*map(plan_of, ORDERS), sep="\n")
    for rule in RULES:
        breaches = rule()
        print(f"{rule.__name__}: {len(breaches)}", *breaches, sep="\n  ")
    for count, most in BUDGETS.items():
        found = count()
        print(f"{count.__name__}: {len(found)} of {most}", *found, sep="\n  ")
