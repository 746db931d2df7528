"""The values that flow."""

from __future__ import annotations

import pytest

from localmem.kernel.messages import FunctionCall, FunctionResult, Step, Usage


def step(name: str, *, ok: bool = True) -> Step:
    return Step(FunctionCall(name, {"message": "Hello."}), FunctionResult(ok, ""), Usage())


def test_message_that_was_sent_is_the_reply():
    assert step("send_message").reply == "Hello."


@pytest.mark.parametrize(
    "other",
    [step("core_memory_append"), step("send_message", ok=False), Step(None, FunctionResult(False, ""), Usage())],
)
def test_anything_else_is_no_reply(other: Step):
    assert other.reply is None


def test_costs_add_up():
    assert Usage(10, 4, 6, 3, 1.0, 2.0) + Usage(1, 0, 1, 1, 0.5, 0.5) == Usage(11, 4, 7, 4, 1.5, 2.5)
