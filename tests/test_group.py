"""Workers gather: all arrives, and no sum is larger than what is gathered."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unet_scaling.group import group
from unet_scaling.group.group import Group
from unet_scaling.group.identity import Identity
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError

Result = TypeVar("Result")


def in_threads(size: int, work: Callable[[Group], Result]) -> tuple[list[Result], list[int]]:
    """Let a thread stand for each worker; return what each got, and the bytes of each sum."""
    entered: list[Tensor] = [torch.empty(0)] * size
    barrier = threading.Barrier(size, timeout=60)
    sums: list[int] = []

    def sum_of(rank: int) -> Callable[[Tensor], Callable[[], None]]:
        def total(tensor: Tensor) -> Callable[[], None]:
            entered[rank] = tensor.clone()
            if barrier.wait() == 0:
                sums.append(tensor.nbytes)
            tensor.copy_(torch.stack(entered).sum(dim=0))
            barrier.wait()
            return lambda: None

        return total

    groups = [
        Group(Identity(rank, size, rank, ""), torch.device("cpu"), sum_of(rank), {}) for rank in range(size)
    ]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, groups)), sums


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=70), min_size=1, max_size=5), st.sampled_from([1, 3, 1000]), st.booleans())
def test_bytes_arrive_and_no_sum_is_larger_than_they_are(
    data: list[bytes], words: int, everywhere: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group, "WORDS_AT_ONCE", words)
        found, sums = in_threads(len(data), lambda own: own.gather_bytes(data[own.rank], everywhere))
    assert found[0] == data
    assert all(each == (data if everywhere else [b""] * len(data)) for each in found[1:])
    lengths, *rest = sums
    rounded = sum(len(each) + 3 for each in data)
    assert lengths == 8 * len(data)
    assert sum(rest) <= rounded
    assert max(rest, default=0) <= 4 * words


def test_an_error_of_one_is_one_of_all() -> None:
    def action(own: Group) -> str:
        def fails() -> None:
            if own.rank == 1:
                raise UserError("wrong", EXIT_BAD_DATA)

        with pytest.raises(UserError, match="wrong") as error:
            own.run_on_all(fails)
        return f"{error.value.exit_code}"

    assert in_threads(3, action)[0] == ["65"] * 3
