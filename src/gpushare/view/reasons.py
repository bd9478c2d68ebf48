"""Reason codes as text: a constant one for the scheduler, a sentence for people.

kube-scheduler counts equal strings ("3 no single GPU has enough free memory"), so the short text of
a code never varies. The sentence adds the amounts and what would help.
"""

from collections.abc import Mapping
from typing import Final

from gpushare.contract import names
from gpushare.contract.names import Reason
from gpushare.contract.units import Unit

_SHORT: Final[Mapping[Reason, str]] = {
    Reason.NOT_SHARING: "node(s) do not share GPU memory",
    Reason.NODE_FULL: "node(s) have too little free GPU memory",
    Reason.NO_GPU_FITS: "no single GPU has enough free memory",
    Reason.GPU_COUNT: "node(s) have fewer GPUs than the pod spans",
    Reason.MODE_MIX: "node(s) mix memory-only pods and pods with a compute share",
    Reason.INIT_STRADDLE: "no single GPU fits an init container with those that reuse its memory",
    Reason.BAD_REQUEST: "the pod's GPU request is invalid",
    Reason.NOT_READY: "node(s) have no GPU ready to share",
}


def short(reason: Reason) -> str:
    """The constant text of a reason, as FailedScheduling messages carry it."""
    return _SHORT[reason]


def amount(units: int, unit: Unit) -> str:
    """An amount of GPU memory for people: `4 GiB`, or `32 units of 128 MiB (4 GiB)`."""
    if unit is Unit.GIB:
        return f"{units} GiB"
    mib = units * unit.mib
    size = f"{mib} MiB" if mib % 1024 else f"{mib // 1024} GiB"
    return f"{units} {'unit' if units == 1 else 'units'} of {unit.mib} MiB ({size})"


def message(
    reason: Reason, *, largest_free: int, units: int, unit: Unit, gpu_count: int = 0
) -> str:
    """Why a pod has no place, in a sentence, with what would help.

    largest_free  the largest amount any single GPU considered could still take
    units         what the pod asks for in all
    gpu_count     GPUs the pod spans, each with an equal part; 0 where it does not say
    """
    asked = amount(units, unit)
    if gpu_count > 1:
        asked = f"{asked} on {gpu_count} GPUs, {amount(units // gpu_count, unit)} on each"
    free = (
        f"the most any GPU can still take is {amount(largest_free, unit)}"
        if largest_free
        else "no GPU can take anything more"
    )
    part = units // gpu_count if gpu_count else units
    match reason:
        case Reason.NOT_SHARING:
            return (
                f"the pod asks for {asked}, and no node it may run on shares its GPUs; label one "
                f"{names.LABEL_MODE}=cgpu (or share), or loosen the pod's nodeSelector"
            )
        case Reason.NODE_FULL:
            return (
                f"the pod asks for {asked}, more than is free on any node it may run on; {free}. "
                "A pod that ends, or one more GPU node, makes room"
            )
        case Reason.NO_GPU_FITS if gpu_count > 1:
            return (
                f"the pod asks for {asked}, and no node has {gpu_count} GPUs with that much free; "
                f"{free}. Pods that end on enough GPUs of one node make room; so does a smaller "
                f"{names.LABEL_GPU_COUNT} where the GPUs are large"
            )
        case Reason.NO_GPU_FITS:
            ask_less = f"; or ask for at most {largest_free}" if 0 < largest_free < part else ""
            return (
                f"the pod asks for {asked}, and though a node's sum would do, no single GPU has "
                f"that much free; {free}. A pod that ends on such a GPU makes room{ask_less}; "
                f"binpack ({names.LABEL_PLACEMENT}) keeps GPUs free for large pods"
            )
        case Reason.GPU_COUNT:
            return (
                f"the pod asks for {asked}, and no node it may run on has {gpu_count or 'enough'} "
                f"GPUs that take new pods; use a smaller {names.LABEL_GPU_COUNT} label, one that "
                "divides every container's amount"
            )
        case Reason.MODE_MIX:
            return (
                f"the pod asks for {asked}, and memory-only pods do not share a node with pods "
                f"that ask for {names.RESOURCE_CORE}, which only {names.LABEL_MODE}=core_mem "
                "nodes take; use another node for it"
            )
        case Reason.INIT_STRADDLE:
            return (
                f"the pod asks for {asked}, and its later containers reuse an init container's "
                f"memory, so that they must share one GPU with it; {free}. Ask in the app "
                "containers only, or for the same amount in init and app container"
            )
        case Reason.BAD_REQUEST:
            return (
                f"the pod's request can be served by no node; ask for whole units of "
                f"{names.RESOURCE_MEM} under resources.limits, e.g. 4"
            )
        case Reason.NOT_READY:
            return (
                f"the pod asks for {asked}, and the nodes that share GPUs have none ready; is the "
                "device plugin running on them (kubectl -n kube-system get pods -o wide)?"
            )
