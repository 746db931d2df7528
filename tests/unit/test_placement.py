"""Where the layers go: the GPU where there is one with room, else the CPU."""

from __future__ import annotations

import logging

import pytest

from localmem.backend.placement import layers_on_gpu

GB = 1_000_000_000


@pytest.mark.parametrize(
    ("setting", "offload", "free_bytes", "layers"),
    [
        (-1, True, 4 * GB, -1),
        (-1, True, 11 * GB // 10, -1),
        (-1, True, 11 * GB // 10 - 1, 0),
        (-1, False, 4 * GB, 0),
        (0, True, 4 * GB, 0),
        (12, True, 0, 12),
        (12, False, 0, 0),
    ],
)
def test_layers_go_where_they_can(setting: int, offload: bool, free_bytes: int, layers: int):
    assert layers_on_gpu(setting, offload=offload, free_bytes=free_bytes, needed_bytes=GB) == layers


def test_too_little_memory_is_said(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="localmem")
    layers_on_gpu(-1, offload=True, free_bytes=GB // 2, needed_bytes=GB)
    assert "needs 1000 MB and a tenth to spare, the GPU has 500 MB free" in caplog.text


def test_layers_that_were_asked_for_in_vain_are_a_warning(caplog: pytest.LogCaptureFixture):
    layers_on_gpu(12, offload=False, free_bytes=0, needed_bytes=GB)
    assert "12 layers were asked for on the GPU" in caplog.text


def test_no_gpu_and_no_wish_for_one_is_said_to_nobody(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, logger="localmem")
    layers_on_gpu(-1, offload=False, free_bytes=0, needed_bytes=GB)
    assert not caplog.records
