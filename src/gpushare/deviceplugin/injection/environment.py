"""A container's environment variables (CONTRACT: environment of the container)."""

from gpushare.contract import names
from gpushare.deviceplugin.core.books import Books, Place
from gpushare.deviceplugin.core.offers import Granted


def environment(books: Books, granted: Granted) -> dict[str, str]:
    """What a container is told of the units it was given.

    With several GPUs, indexes and amounts are lists in the order of the UUIDs.
    """
    request = books.pod_of(granted.piece).facts.record.request
    told = variables(books, granted.place, len(granted.ids))
    return {**told, names.ENV_MEM_POD: str(request.units)}


def variables(books: Books, place: Place, units: int) -> dict[str, str]:
    """The same for `units` on `place`, whosever they are: without the pod's total."""
    gpus = {gpu.index: gpu for gpu in books.node.gpus}
    mine = [gpus[index] for index in place]
    return {
        names.ENV_VISIBLE_DEVICES: ",".join(gpu.uuid or "" for gpu in mine),
        names.ENV_MEM_CONTAINER: str(units // len(mine)),
        names.ENV_MEM_DEV: ",".join(str(gpu.units) for gpu in mine),
        names.ENV_MEM_IDX: ",".join(str(gpu.index) for gpu in mine),
        names.ENV_MEM_UNIT: str(books.unit),
    }
