"""What the KV cache holds: the ids of each sequence, and how much of a new prompt is already there.

Exact first: a token is reused only where the same id stands at the same position, with the same ids before it.
"""

from __future__ import annotations

from collections.abc import Sequence


class CachedSequence:
    """The ids one sequence of the KV cache holds, in order."""

    def __init__(self) -> None:
        self._ids: list[int] = []

    def __len__(self) -> int:
        return len(self._ids)

    def reusable(self, prompt: Sequence[int]) -> int:
        """How many of the prompt's ids need not be read again; the last one always is, for its logits."""
        return common_prefix(self._ids, prompt[:-1])

    def truncate(self, length: int) -> None:
        del self._ids[length:]

    def extend(self, ids: Sequence[int]) -> None:
        self._ids.extend(ids)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """The length of the longest common prefix.

    >>> common_prefix([1, 2, 3], [1, 2, 4, 5])
    2
    """
    length = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        length += 1
    return length
