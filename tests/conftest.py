"""Settings of all tests.

Property tests run the same examples each time under `make test`; `HYPOTHESIS_PROFILE=explore`
looks for new ones.
"""

import os

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=80,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile(  # finds a failure, and does not make it small
    "mutation",
    settings.get_profile("repeatable"),
    max_examples=400,
    phases=[Phase.generate],
    report_multiple_bugs=False,
)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
