"""Quotas of a dilated cluster: the control group in which every worker makes its own, and the variables."""

from collections.abc import Mapping
from pathlib import Path

from slurm.virtual.plan import Plan
from slurm.virtual.processes import wait_until
from unet_scaling.study.control_groups import (
    ProcessorHierarchy,
    enable_below,
    make_quota_group,
    prefer_group,
    processor_hierarchy,
    quota_of_cores,
    remove_group,
)
from unet_scaling.study.dilation import DILATION_VARIABLE, LINK_RATE_VARIABLE, QUOTA_FOLDER_VARIABLE
from unet_scaling.study.errors import EXIT_BUG, UserError

# A killed process leaves its group as soon as the kernel has removed it.
LEAVE_SECONDS = 10.0
# Any user may submit: the workers make their own groups in this one.
FOR_ALL_USERS = 0o1777


def prepare_quotas(plan: Plan) -> None:
    """Make the group of a dilated cluster, if it is one. Raises UserError where no quota can be had."""
    if not plan.is_dilated:
        return
    hierarchy = processor_hierarchy()
    folder = quota_folder(plan, hierarchy)
    try:
        _enable_below(hierarchy, hierarchy.root)
        folder.mkdir(exist_ok=True)
        _enable_below(hierarchy, folder)
        # Runs that start have no quota yet: they would take the processors from those that are timed.
        prefer_group(folder)
        folder.chmod(FOR_ALL_USERS)
    except OSError as error:
        raise UserError(f"no control group for the workers: {error.filename}: {error.strerror}") from None
    _try_quota(plan, folder)


def quota_folder(plan: Plan, hierarchy: ProcessorHierarchy) -> Path:
    """Return the group of this cluster."""
    return hierarchy.root / plan.uplink


def task_variables(plan: Plan) -> Mapping[str, str]:
    """Return the variables by which every task of a job knows how the cluster differs from this machine."""
    found = {LINK_RATE_VARIABLE: plan.link_rate} if plan.link_rate else {}
    if plan.is_dilated:
        found[DILATION_VARIABLE] = f"{plan.dilation:g}"
        found[QUOTA_FOLDER_VARIABLE] = str(quota_folder(plan, processor_hierarchy()))
    return found


def remove_groups(state: Path) -> None:
    """Remove the groups of the cluster in `state`, whose processes have ended, if it has any."""
    try:
        folder = quota_folder(Plan(state), processor_hierarchy())
    except UserError:
        return
    if folder.exists() and not wait_until(lambda: _is_removed(folder), LEAVE_SECONDS):
        raise UserError(f"{folder}: a control group with processes in it cannot be removed", EXIT_BUG)


def _is_removed(folder: Path) -> bool:
    try:
        remove_group(folder)
    except OSError:  # busy: a process has not left yet
        return False
    return True


def _try_quota(plan: Plan, folder: Path) -> None:
    """Raise UserError where the kernel refuses the quota of a worker of one core."""
    trial = folder / "trial"
    try:
        make_quota_group(trial, quota_of_cores(1 / plan.dilation, processors=1))
    finally:
        if trial.exists():
            trial.rmdir()


def _enable_below(hierarchy: ProcessorHierarchy, folder: Path) -> None:
    if hierarchy.version == 2:
        enable_below(folder)
