"""Convert lines of records in formats 1 to 4 to format 5.

Format 5 renamed keys: `point` and `point_sha256` of the header are `config` and `config_sha256`, and
`rehearsal_seconds` of the startup is `warm_up_step_seconds`. It dropped counters that nothing reads. The
digest of a configuration covers since then only what differs from the defaults; before, it covered all but
the options that came after format 1.
"""

import hashlib
import json
from typing import Any

from unet_scaling.study.config import RunConfig
from unet_scaling.study.options import OPTION_TABLES

# A line of format 5 needs no change.
NEWEST_OLDER_FORMAT = 4
# What the digests of formats 1 to 4 left out where it had its default. No option is ever added here.
OPTIONS_OUTSIDE_OLDER_DIGESTS = (
    ("data", "loader_workers"),
    ("data", "augment_flips"),
    ("data", "augment_crop"),
    ("data", "augment_brightness"),
    ("data", "augment_contrast"),
    ("training", "budget"),
    ("training", "timeout_seconds"),
    ("training", "checkpoint_minutes"),
    ("training", "cores_per_worker"),
    ("training", "gradient_compression"),
    ("pytorch_native", "gradient_as_bucket_view"),
    ("pytorch_native", "static_graph"),
    ("horovod", "yield_when_idle"),
    ("horovod", "groups"),
    ("horovod", "controller"),
)
DROPPED_CPU_COUNTERS = (
    "training_voluntary_switches",
    "process_voluntary_switches",
    "process_involuntary_switches",
    "minor_faults",
)


def in_newest_words(content: bytes) -> bytes:
    """Return a line as format 5 would write it; a line that needs no change is returned as it is.

    Raises ValueError where the configuration does not match the digest beside it.
    """
    line = json.loads(content)
    if line.get("kind") == "header" and line.get("format", 0) <= NEWEST_OLDER_FORMAT and "point" in line:
        return json.dumps(_header(line)).encode()
    if line.get("kind") == "startup" and "rehearsal_seconds" in line:
        line["warm_up_step_seconds"] = line.pop("rehearsal_seconds")
        return json.dumps(line).encode()
    if line.get("kind") == "epoch" and line.get("cpu"):
        for counters in line["cpu"]:
            for name in DROPPED_CPU_COUNTERS:
                counters.pop(name, None)
        return json.dumps(line).encode()
    return content


def _header(line: dict[str, Any]) -> dict[str, Any]:
    config = line.pop("point")
    if older_digest(config) != line.pop("point_sha256"):
        raise ValueError("the point was changed after the run: its SHA-256 differs")
    return line | {"config": config, "config_sha256": RunConfig.model_validate(config).digest()}


def older_digest(config: dict[str, Any]) -> str:
    """Return the SHA-256 by which formats 1 to 4 knew a configuration."""
    content = dict(config)
    for table, option in OPTIONS_OUTSIDE_OLDER_DIGESTS:
        default = OPTION_TABLES[table].model_fields[option].default
        if content[table] is not None and content[table].get(option, default) == default:
            content[table] = {key: value for key, value in content[table].items() if key != option}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
