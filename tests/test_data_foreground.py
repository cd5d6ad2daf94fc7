"""The foreground rule declares every mask value, and anything else is a mistake."""

import numpy as np
import pytest

from tests.data_folders import refused
from unet_scaling.data.foreground import parse_foreground
from unet_scaling.study.errors import UserError

PIXELS = np.array([[0, 1, 2, 127, 128, 255, 256, 65535]], dtype=np.uint16)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("nonzero", [0, 1, 1, 1, 1, 1, 1, 1]),
        ("255", [0, 0, 0, 0, 0, 1, 0, 0]),
        ("1, 2", [0, 1, 1, 0, 0, 0, 0, 0]),
        (">127", [0, 0, 0, 0, 1, 1, 1, 1]),
        ("65535", [0, 0, 0, 0, 0, 0, 0, 1]),
    ],
)
def test_rules_select_values_at_the_full_depth(rule: str, expected: list[int]) -> None:
    mask = parse_foreground(rule).mask(PIXELS)
    assert mask.dtype == np.uint8
    assert mask[0].tolist() == expected


@pytest.mark.parametrize(
    ("rule", "found", "unexpected"),
    [
        ("nonzero", {0, 255}, []),
        ("nonzero", {7}, []),
        ("nonzero", {0, 1, 255}, [1, 255]),
        ("255", {0, 255}, []),
        ("255", {0, 1, 255}, [1]),
        ("1,2", {0, 1, 2, 3}, [3]),
        (">127", {0, 13, 200}, []),
    ],
)
def test_values_that_the_rule_does_not_provide_for(rule: str, found: set[int], unexpected: list[int]) -> None:
    assert parse_foreground(rule).unexpected(found) == unexpected


def test_equal_rules_have_one_spelling() -> None:
    assert parse_foreground(" 2, 1,1").text == parse_foreground("1,2").text == "1,2"
    assert parse_foreground("> 0127").text == ">127"


@pytest.mark.parametrize(
    "rule", ["", "0", "0,1", "white", ">", ">65535", "70000", "-1", "1;2", "1,", "<5", "٣"]
)
def test_an_invalid_rule_names_the_key_and_the_allowed_forms(rule: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_foreground(rule)
    assert refused(caught, 2, "data.foreground", repr(rule), "'nonzero'", "'>127'")
