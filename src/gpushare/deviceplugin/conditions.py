"""What the node's labels promise, what is in the way of it, and what follows; pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.contract import names
from gpushare.contract.names import Mode
from gpushare.deviceplugin.advertising import OFFERED_MODES
from gpushare.isolation.probe import Backend, Isolation


@dataclass(frozen=True, slots=True)
class Conditions:
    """Of one node at one moment."""

    mode: Mode = Mode.DEFAULT
    whole_gpus: str = "0"
    """Of `nvidia.com/gpu`, which another device plugin offers."""
    alone: bool = True
    """Nobody else may offer the same GPUs whole."""
    taken: Mapping[str, str] = field(default_factory=dict)
    """GPU UUID -> which pod has it by way of another device plugin."""
    not_injectable: str | None = None
    """Why no container can get its GPU; None: it can."""
    isolation: Isolation | None = None
    """What holds containers to their share; None: nobody has looked, or nobody wants it."""
    unisolated_allowed: bool = False
    """A node that should isolate takes pods although it cannot."""

    # -- offering ---------------------------------------------------------------------------------

    @property
    def offering(self) -> bool:
        """Whether the node's labels want its GPU memory offered, and we know how."""
        return self.mode in OFFERED_MODES and self._obstacle is None

    @property
    def not_offered(self) -> str | None:
        """Why the node's label wants GPU memory shared, and we do not offer any."""
        if self.mode in OFFERED_MODES:
            return self._obstacle
        if not self.mode.shares_memory:
            return None
        return (
            f"{names.LABEL_MODE}={self.mode} is not supported yet: nothing here would hold "
            f"containers to what it promises. Use {' or '.join(sorted(OFFERED_MODES))}"
        )

    @property
    def _obstacle(self) -> str | None:
        """Why GPU memory must not be offered, whatever the node's labels want."""
        if self.alone and self.whole_gpus != "0":
            return (
                f"another device plugin offers the same GPUs as {names.RESOURCE_WHOLE_GPU}: "
                f"{self.whole_gpus}. Take it off this node (NVIDIA's: by the label "
                "nvidia.com/gpu.deploy.device-plugin=false, or its node selector), or start this "
                "one with --beside-whole-gpus if it is known to leave these GPUs alone"
            )
        return self.not_injectable

    # -- isolating --------------------------------------------------------------------------------

    @property
    def isolating(self) -> bool:
        """Whether containers that come now are held to their share."""
        able = self.isolation is not None and self.isolation.backend is not Backend.NONE
        return able and self.mode is Mode.CGPU

    @property
    def takes_nothing_new(self) -> bool:
        """Whether free units are kept back: what is promised of them cannot be kept."""
        return self.mode is Mode.CGPU and not self.isolating and not self.unisolated_allowed

    @property
    def not_isolated(self) -> str | None:
        """Why containers are not held to their share, on a node that promises it."""
        if self.mode is not Mode.CGPU or self.isolation is None or not self.isolation.problems:
            return None
        return (
            f"{names.LABEL_MODE}={Mode.CGPU} asks for isolation, and nothing here holds containers "
            f"to their share: {'; '.join(self.isolation.problems)}. "
        ) + (
            "Every container can use the whole memory of its GPU, as --allow-unisolated allows"
            if self.unisolated_allowed
            else "The node takes no new pods until that is mended; with --allow-unisolated it "
            "would, and nothing would hold them"
        )

    @property
    def isolation_label(self) -> str | None:
        """What the node's label should say; None: nothing."""
        if not self.mode.shares_memory:
            return None
        if self.mode is Mode.CGPU and self.isolation is not None:
            return self.isolation.backend
        return Backend.NONE

    # -- single GPUs ------------------------------------------------------------------------------

    @property
    def closed(self) -> dict[str, str]:
        """GPU UUID -> what keeps pods from a GPU that may be well."""
        closed: dict[str, str] = {}
        if self.mode.shares_memory:  # elsewhere that is nothing to tell of
            closed.update(self.taken)
        if self.isolating and self.isolation is not None and not self.unisolated_allowed:
            for uuid, why in self.isolation.refused.items():
                closed[uuid] = f"it cannot be isolated: {why}"
        return closed
