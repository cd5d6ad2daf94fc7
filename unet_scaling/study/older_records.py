"""Convert lines of older records to what format 5 is now.

Format 5 renamed keys: `point` and `point_sha256` of the header are `config` and `config_sha256`, and
`rehearsal_seconds` of the startup is `warm_up_step_seconds`. It dropped what nothing reads. The
digest of a configuration covers since then only what differs from the defaults; before, it covered all but
the options that came after format 1.
"""

import hashlib
import json
from typing import Any

from unet_scaling.study.config import WRAPPERS, RunConfig
from unet_scaling.study.files import parse_json
from unet_scaling.study.options import OPTION_TABLES

# Headers up to this format name the configuration otherwise.
NEWEST_OLDER_FORMAT = 4
# What the digests of formats 1 to 4 left out where it had its default. No option is ever added here.
OPTIONS_OUTSIDE_OLDER_DIGESTS = {
    "data": (
        "loader_workers", "augment_flips", "augment_crop", "augment_brightness", "augment_contrast",
    ),
    "training": (
        "budget", "noise_scale_every", "timeout_seconds", "checkpoint_minutes", "cores_per_worker",
        "gradient_compression", "plays",
    ),
    "pytorch_native": ("gradient_as_bucket_view", "static_graph"),
    "horovod": ("yield_when_idle", "groups", "controller"),
}  # fmt: skip
DROPPED_CPU_COUNTERS = (
    "training_voluntary_switches", "process_voluntary_switches", "process_involuntary_switches",
    "minor_faults", "training_involuntary_switches", "major_faults",
)  # fmt: skip
# A line without any of these needs no change; looking for them is faster than parsing JSON.
KEYS_OF_OLDER_LINES = (
    b'"point_sha256"', b'"rehearsal_seconds"', b'"major_faults"', b'"smoothed_jaccard"', b'"repeated_epochs"',
)  # fmt: skip


def in_newest_words(content: bytes) -> bytes:
    """Return a line as it would be written now.

    Raises ValueError where the configuration does not match the digest beside it.
    """
    return json.dumps(_newest_line(parse_json(content))).encode()


def progress_in_newest_words(content: str) -> str:
    """Return the progress of a checkpoint, whose epochs and results are lines of a record, likewise."""
    if not any(key.decode() in content for key in KEYS_OF_OLDER_LINES):
        return content
    progress = parse_json(content)
    for lines in ("epochs", "results"):
        progress[lines] = [_newest_line(line) for line in progress.get(lines, [])]
    return json.dumps(progress)


def _newest_line(line: dict[str, Any]) -> dict[str, Any]:
    kind = line.get("kind", "")
    if kind == "header":
        return _newest_header(line)
    if kind == "startup" and "rehearsal_seconds" in line:
        line["warm_up_step_seconds"] = line.pop("rehearsal_seconds")
    elif kind == "epoch":
        for counters in line.get("cpu") or []:
            for name in DROPPED_CPU_COUNTERS:
                counters.pop(name, None)
    elif kind == "result":
        line.pop("smoothed_jaccard", None)
    return line


def _newest_header(line: dict[str, Any]) -> dict[str, Any]:
    if line.get("resumed"):
        line["resumed"].pop("repeated_epochs", None)
    if line.get("format", 0) > NEWEST_OLDER_FORMAT or "point" not in line:
        return line
    config = line.pop("point")
    if older_digest(config) != line.pop("point_sha256"):
        raise ValueError("the point was changed after the run: its SHA-256 differs")
    return line | {"config": config, "config_sha256": RunConfig.model_validate(config).digest()}


def older_digest(config: dict[str, Any]) -> str:
    """Return the SHA-256 by which formats 1 to 4 knew a configuration."""
    # No run of those days could be of a framework that was added since.
    content = {key: value for key, value in config.items() if key not in WRAPPERS}
    for table, options in OPTIONS_OUTSIDE_OLDER_DIGESTS.items():
        fields = OPTION_TABLES[table].model_fields
        if content[table] is not None:
            content[table] = {
                key: value
                for key, value in content[table].items()
                if key not in options or value != fields[key].default
            }
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
