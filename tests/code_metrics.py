"""Print facts of the code as a table, or as JSON: python -m tests.code_metrics [--json]."""

import difflib
import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.source import (
    PRODUCT,
    Module,
    code_lines,
    comment_lines,
    cycles,
    definitions,
    functions,
    internal_imports,
    levels,
    modules,
    node_count,
    parallel_assignments,
)
from unet_scaling.study.config import ALL_FRAMEWORKS, PROJECT

FOLDERS = ("unet_scaling", "slurm", "analysis", "environment", "tests", "benchmarks")
HEADINGS = {
    "files": "files",
    "lines": "lines",
    "functions": "functions",
    "median_nodes": "median",
    "p90_nodes": "p90",
    "comments_per_100": "comments/100",
    "parallel_assignments": "parallel",
    "imports": "imports",
    "levels": "levels",
    "cycles": "cycles",
}


def quantile(values: Sequence[int], share: float) -> int:
    """Return the value at or below which this share of the values lies; 0 where there are none."""
    return sorted(values)[int(share * (len(values) - 1))] if values else 0


def folder_facts(code: Sequence[Module]) -> dict[str, float]:
    """Return the facts of these files by the keys of HEADINGS; a function's nodes are those of its tree."""
    sizes = [node_count(function) for _, function in functions(code)]
    graph = internal_imports(code)
    lines = sum(code_lines(module) for module in code)
    return {
        "files": len(code),
        "lines": sum(module.text.count("\n") for module in code),
        "functions": len(sizes),
        "median_nodes": quantile(sizes, 0.5),
        "p90_nodes": quantile(sizes, 0.9),
        "comments_per_100": round(100 * sum(map(comment_lines, code)) / max(lines, 1), 1),
        "parallel_assignments": len(parallel_assignments(code)),
        "imports": sum(len(imported) for imported in graph.values()),
        "levels": levels(graph),
        "cycles": len(cycles(graph)),
    }


def twins_facts() -> dict[str, int]:
    """Return the lines of each twin, and those that differ from the native one."""
    texts = {name: (PROJECT / name / "train.py").read_text().splitlines() for name in ALL_FRAMEWORKS}
    native = texts[ALL_FRAMEWORKS[0]]
    facts = {f"{name} lines": len(lines) for name, lines in texts.items()}
    for name, lines in list(texts.items())[1:]:
        changes = Counter(line[0] for line in difflib.ndiff(native, lines))
        facts |= {f"{name} removes": changes["-"], f"{name} adds": changes["+"]}
    return facts


def duplicate_names(code: Sequence[Module]) -> dict[str, list[str]]:
    """Return the public names that more than one file defines, with those files."""
    return {name: files for name, files in definitions(code).items() if len(files) > 1}


def all_facts() -> dict[str, Any]:
    code = modules(*PRODUCT)
    return {
        "product": folder_facts(code),
        **{folder: folder_facts(modules(folder)) for folder in FOLDERS},
        "twins": twins_facts(),
        "duplicate_names": duplicate_names([module for module in code if module.path.name != "train.py"]),
    }


def table(facts: dict[str, Any]) -> str:
    """Return the facts as text: a line for each folder, then the twins and the names defined twice."""
    rows = [["", *HEADINGS.values()]]
    rows += [[name, *(str(facts[name][key]) for key in HEADINGS)] for name in ("product", *FOLDERS)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.append("twins: " + ", ".join(f"{name} {count}" for name, count in facts["twins"].items()))
    lines += [f"twice: {name} in {', '.join(files)}" for name, files in facts["duplicate_names"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    facts = all_facts()
    print(json.dumps(facts, indent=1) if "--json" in sys.argv else table(facts))
