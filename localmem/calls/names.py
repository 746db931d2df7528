"""What a model calls the functions: the paper's names, or others that say more to it.

The runtime knows a function by its one name, the paper's. Another is written and read in the call frame, in the prompt
and in what the runtime tells the model, and nowhere else: memory, rules, traces and people see the paper's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Names:
    """`known_as` holds, for a function by its own name, the model's. A function that it does not hold keeps its own.

    >>> names = Names({"send_message": "say"})
    >>> names.of("send_message"), names.of("f"), names.function("say"), names.in_text("After it: send_message.")
    ('say', 'f', 'send_message', 'After it: say.')
    """

    known_as: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)

    def of(self, function: str) -> str:
        """The model's name of a function."""
        return self.known_as.get(function, function)

    def function(self, name: str) -> str:
        """The function that a model calls so."""
        return next((function for function, known in self.known_as.items() if known == name), name)

    def in_text(self, text: str) -> str:
        """A text of the runtime's own, with each function under the model's name of it."""
        if not self.known_as:
            return text
        any_function = "|".join(map(re.escape, sorted(self.known_as, key=len, reverse=True)))
        return re.sub(rf"\b(?:{any_function})\b", lambda found: self.known_as[found[0]], text)


OWN_NAMES = Names()
"""Every function by its own name."""
