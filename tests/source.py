"""Facts of the project's Python code, read from its syntax trees: imports, functions, names, constants."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from unet_scaling.study.config import ALL_FRAMEWORKS, PROJECT

PRODUCT = ("unet_scaling", *ALL_FRAMEWORKS, "slurm", "analysis", "environment")
Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


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
