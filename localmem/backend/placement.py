"""Where the model's layers go: all on the GPU where that can be had, none otherwise. Pure: it is told what there is."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

ALL_LAYERS = -1
_HEADROOM = 1.1  # the driver, and fragments between the buffers, take some of what reads as free


def layers_on_gpu(setting: int, *, offload: bool, free_bytes: int, needed_bytes: int) -> int:
    """The layers to ask llama.cpp for: a number, or -1 for all.

    `setting` is the user's number, -1 = all that can be had; `offload` says whether llama.cpp was built for a GPU and
    finds one, `free_bytes` is that GPU's free memory, `needed_bytes` what weights, KV cache and compute buffers take.
    A number that was asked for is passed on as it is.

    >>> layers_on_gpu(-1, offload=True, free_bytes=4_000_000_000, needed_bytes=1_500_000_000)
    -1
    >>> layers_on_gpu(-1, offload=False, free_bytes=0, needed_bytes=1_500_000_000)
    0
    """
    if not offload:
        if setting > 0:
            logger.warning("%d layers were asked for on the GPU, but this llama.cpp has none to use", setting)
        return 0
    if setting == ALL_LAYERS and needed_bytes * _HEADROOM > free_bytes:
        logger.info(
            "the model stays on the CPU: it needs %d MB and a tenth to spare, the GPU has %d MB free",
            needed_bytes // 1_000_000,
            free_bytes // 1_000_000,
        )
        return 0
    return setting
