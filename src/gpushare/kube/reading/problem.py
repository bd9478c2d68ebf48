"""What reading an object found that somebody should mend."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """Something on an object that somebody should mend.

    `reason` is constant per kind of problem (an Event's reason); `message` says what and how to
    mend it, without the object's name.
    """

    reason: str
    message: str
