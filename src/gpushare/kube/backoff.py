"""How long to wait before trying again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass
class Backoff:
    """Doubling delays with jitter, seconds.

    Each delay is drawn between half and all of `first_s`, 2 × `first_s`, … up to `cap_s`. The
    jitter keeps the plugins of many nodes from coming back to a restarted API server in step.
    """

    first_s: float = 0.25
    cap_s: float = 20.0
    random: random.Random = field(default_factory=random.Random)
    failures: int = field(default=0, init=False)

    def next_s(self) -> float:
        """The delay after one more failure."""
        delay = min(self.cap_s, self.first_s * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return delay * self.random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Something went well."""
        self.failures = 0
