"""A container's environment variables (CONTRACT: environment of the container)."""

from gpushare.contract import names
from gpushare.deviceplugin.core.books import Books
from gpushare.deviceplugin.core.offers import Granted


def environment(books: Books, granted: Granted) -> dict[str, str]:
    """What a container is told of the units it was given.

    With several GPUs, indexes and amounts are lists in the order of the UUIDs.
    """
    gpus = {gpu.index: gpu for gpu in books.node.gpus}
    mine = [gpus[index] for index in granted.place]
    request = books.pod_of(granted.piece).facts.record.request
    return {
        names.ENV_VISIBLE_DEVICES: ",".join(gpu.uuid or "" for gpu in mine),
        names.ENV_MEM_CONTAINER: str(len(granted.ids) // len(mine)),
        names.ENV_MEM_DEV: ",".join(str(gpu.units) for gpu in mine),
        names.ENV_MEM_POD: str(request.units),
        names.ENV_MEM_IDX: ",".join(str(gpu.index) for gpu in mine),
        names.ENV_MEM_UNIT: str(books.unit),
    }
