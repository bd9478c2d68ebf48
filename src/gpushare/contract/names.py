"""Names that users, the scheduler, the kubelet and dashboards know us by.

They are a promise: a name here is read or written by manifests, scripts and other programs outside
this project, so none changes without a new one beside it.
"""

from enum import StrEnum
from typing import Final

# --- Node labels --------------------------------------------------------------------------------

LABEL_MODE: Final = "ack.node.gpu.schedule"
"""What a node's GPUs are scheduled as; a value of `Mode`."""

LABEL_PLACEMENT: Final = "ack.node.gpu.placement"
"""Which GPU of the node a pod gets; a name in `gpushare.policy.GPU_POLICIES`."""

LABEL_OLD_SHARE: Final = "gpushare"
"""The open-source add-on's label: "true" means mode `share`; LABEL_MODE wins over it."""

LABEL_ACCELERATOR_NAME: Final = "aliyun.accelerator/nvidia_name"
LABEL_ACCELERATOR_MEM: Final = "aliyun.accelerator/nvidia_mem"
LABEL_ACCELERATOR_COUNT: Final = "aliyun.accelerator/nvidia_count"

LABEL_NVIDIA_PRODUCT: Final = "nvidia.com/gpu.product"
LABEL_NVIDIA_COUNT: Final = "nvidia.com/gpu.count"
LABEL_NVIDIA_MEMORY: Final = "nvidia.com/gpu.memory"
"""Written by NVIDIA's GPU feature discovery; memory in MiB. Read by `simulate --share`."""

LABEL_ISOLATION: Final = "gpushare.dev/isolation"
"""Which backend holds containers to their share: "driver", "interposer" or "none"."""


class Mode(StrEnum):
    """Values of LABEL_MODE (CONTRACT: node labels)."""

    DEFAULT = "default"
    SHARE = "share"
    CGPU = "cgpu"
    CORE_MEM = "core_mem"
    MPS = "mps"
    TOPOLOGY = "topology"
    MIG = "mig"

    @property
    def shares_memory(self) -> bool:
        """Whether a node of this mode offers GPU memory to several pods."""
        return self in (Mode.SHARE, Mode.CGPU, Mode.CORE_MEM, Mode.MPS)


# --- Resources ----------------------------------------------------------------------------------

RESOURCE_MEM: Final = "aliyun.com/gpu-mem"
RESOURCE_COUNT: Final = "aliyun.com/gpu-count"
RESOURCE_CORE: Final = "aliyun.com/gpu-core.percentage"
RESOURCE_WHOLE_GPU: Final = "nvidia.com/gpu"

CORE_PERCENT_STEP: Final = 5
CORE_PERCENT_MAX: Final = 100
"""100 is one GPU; a pod asks in steps of 5, at least 5."""

# --- Pod labels and annotations -----------------------------------------------------------------

LABEL_GPU_COUNT: Final = "aliyun.com/gpu-count"
"""Pod label: how many GPUs of one node the pod spans."""

ANNOTATION_ALLOCATION: Final = "scheduler.framework.gpushare.allocation"
ANNOTATION_ASSUME_TIME: Final = "scheduler.framework.gpushare.assume-time"
ANNOTATION_ASSIGNED: Final = "scheduler.framework.gpushare.assigned"
ANNOTATION_CORE: Final = "gpushare.alibabacloud.com/core-percentage"

ANNOTATION_OLD_IDX: Final = "ALIYUN_COM_GPU_MEM_IDX"
ANNOTATION_OLD_POD: Final = "ALIYUN_COM_GPU_MEM_POD"
ANNOTATION_OLD_DEV: Final = "ALIYUN_COM_GPU_MEM_DEV"
ANNOTATION_OLD_ASSIGNED: Final = "ALIYUN_COM_GPU_MEM_ASSIGNED"
ANNOTATION_OLD_ASSUME_TIME: Final = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"

ANNOTATION_INIT_ALLOCATION: Final = "gpushare.dev/init-allocation"
ANNOTATION_NUDGE: Final = "gpushare.dev/nudge"
ANNOTATION_UNPROTECTED: Final = "gpushare.dev/unprotected"

# --- Node annotations ---------------------------------------------------------------------------

ANNOTATION_DEVICES: Final = "gpushare.dev/devices"
ANNOTATION_NODE: Final = "gpushare.dev/node"
ANNOTATION_CORDONED: Final = "gpushare.dev/cordoned-gpus"
ANNOTATION_CORRECTIONS: Final = "gpushare.dev/corrections"
ANNOTATION_INIT_CORRECTIONS: Final = "gpushare.dev/init-corrections"

# --- Environment of a container -----------------------------------------------------------------

ENV_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
ENV_MEM_CONTAINER: Final = "ALIYUN_COM_GPU_MEM_CONTAINER"
ENV_MEM_DEV: Final = "ALIYUN_COM_GPU_MEM_DEV"
ENV_MEM_POD: Final = "ALIYUN_COM_GPU_MEM_POD"
ENV_MEM_IDX: Final = "ALIYUN_COM_GPU_MEM_IDX"
ENV_MEM_UNIT: Final = "ALIYUN_COM_GPU_MEM_UNIT"
ENV_DISABLE_ISOLATION: Final = "CGPU_DISABLE"

# --- The extender's address ---------------------------------------------------------------------

EXTENDER_PORT: Final = 32766
EXTENDER_PREFIX: Final = "/gpushare-scheduler"
"""Where the open-source add-on's users point kube-scheduler; so do we."""

PLUGIN_METRICS_PORT: Final = 9396

# --- Reasons ------------------------------------------------------------------------------------


class Reason(StrEnum):
    """Why a pod has no place; in JSON, in metric labels (CONTRACT: our own names)."""

    NOT_SHARING = "not-sharing"
    NODE_FULL = "node-full"
    NO_GPU_FITS = "no-gpu-fits"
    GPU_COUNT = "gpu-count"
    MODE_MIX = "mode-mix"
    INIT_STRADDLE = "init-straddle"
    BAD_REQUEST = "bad-request"
    NOT_READY = "not-ready"


# --- Metrics (they are for ever) ----------------------------------------------------------------


class Metric(StrEnum):
    """Prometheus metric names; labels `node`, `gpu`, `uuid`, `namespace`, `pod`, `container`."""

    GPU_CAPACITY = "gpushare_gpu_capacity_units"
    GPU_ALLOCATED = "gpushare_gpu_allocated_units"
    GPU_HEALTHY = "gpushare_gpu_healthy"
    GPU_CORDONED = "gpushare_gpu_cordoned"
    GPU_PODS = "gpushare_gpu_pods"
    NODE_PENDING = "gpushare_node_pending_units"

    PODS_WAITING = "gpushare_pods_waiting"
    DECISIONS = "gpushare_decisions_total"
    REQUEST_DURATION = "gpushare_request_duration_seconds"
    LEDGER_DRIFT = "gpushare_ledger_drift_units"
    WATCH_AGE = "gpushare_watch_age_seconds"
    BIND_CONFLICTS = "gpushare_bind_conflicts_total"

    CONTAINER_ALLOCATED = "gpushare_container_allocated_units"
    CONTAINER_LIMIT = "gpushare_container_memory_limit_bytes"
    CONTAINER_USED = "gpushare_container_memory_used_bytes"
    CONTAINER_PEAK = "gpushare_container_memory_peak_bytes"
    CONTAINER_REFUSED = "gpushare_container_allocations_refused_total"
    CONTAINER_UNPROTECTED = "gpushare_container_unprotected"

    ATTEST_CORRECTIONS = "gpushare_attest_corrections_total"
    ALLOCATIONS = "gpushare_allocations_total"
    REGISTRATIONS = "gpushare_plugin_registrations_total"
