"""What ends `kubectl inspect cgpu` with exit status 1."""


class InspectError(Exception):
    """Nothing could be shown; the text says why, and what would help."""


class ClusterError(InspectError):
    """The cluster could not be read, this time; asking again may help."""
