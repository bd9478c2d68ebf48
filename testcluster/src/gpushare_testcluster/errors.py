"""What can go wrong, as one short tree.

TestClusterError
├── CannotRun      this machine lacks something; tests are skipped with this text
├── BuildFailed    a binary could not be built or its toolchain not be had
├── StartFailed    a process ended, or was not ready in time; the text has its last log lines
└── TimedOut       `wait_for` gave up
"""


class TestClusterError(Exception):
    """The test cluster cannot do what it was asked; the text says what, where and what to do."""

    __test__ = False  # not a test class, whatever pytest thinks of its name


class CannotRun(TestClusterError):
    """This machine cannot run the test cluster (system, rights, missing tools)."""


class BuildFailed(TestClusterError):
    """A binary could not be built; the text ends with the compiler's last lines."""


class StartFailed(TestClusterError):
    """A process of the cluster ended or did not become ready; the text has its last log lines."""


class TimedOut(TestClusterError):
    """A condition did not come true in the time allowed."""
