"""The token budget of a window (MemGPT, section 2.2): when to warn, when to flush, how much to evict.

Pure arithmetic on token counts. `window` is what llama.cpp holds, `reserve` is kept free for the completion, and
every share is of what is left.
"""

from __future__ import annotations

from dataclasses import dataclass

from localmem.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Budget:
    """Token counts for one window.

    >>> Budget(window=4096, reserve=512).flush_tokens
    3584
    """

    window: int = 4096
    reserve: int = 512
    warning: float = 0.70  # paper, section 2.2
    flush: float = 1.0  # paper, section 2.2
    evict: float = 0.5  # paper, section 2.2

    def __post_init__(self) -> None:
        if self.window < 256:
            raise ConfigError(f"budget.window is {self.window} tokens", "Use at least 1024.")
        if not 16 <= self.reserve < self.window:
            raise ConfigError(
                f"budget.reserve is {self.reserve} tokens in a window of {self.window}",
                "Use at least 16, and less than the window.",
            )
        if not 0.1 <= self.warning < self.flush <= 1.0:
            raise ConfigError(
                f"budget.warning is {self.warning} and budget.flush is {self.flush}",
                "Both are shares of the window without its reserve: 0.1 <= warning < flush <= 1.0.",
            )
        if not 0.05 <= self.evict <= 1.0:
            raise ConfigError(f"budget.evict is {self.evict}", "Use a share of the queue, 0.05 to 1.0.")

    @property
    def limit(self) -> int:
        """The longest prompt a backend may be handed."""
        return self.window - self.reserve

    @property
    def warning_tokens(self) -> int:
        """A prompt of this many tokens raises the memory-pressure warning."""
        return int(self.limit * self.warning)

    @property
    def flush_tokens(self) -> int:
        """A prompt over this many tokens flushes the queue."""
        return int(self.limit * self.flush)

    def evict_tokens(self, queue_tokens: int) -> int:
        """How many tokens a flush takes off the front of a queue of `queue_tokens`."""
        return max(1, int(queue_tokens * self.evict))
