"""A container's environment variables (CONTRACT: environment of the container)."""

from __future__ import annotations

from gpushare.contract.names import Mode
from gpushare.contract.units import Unit
from gpushare.deviceplugin.core.books import Books, Piece
from gpushare.deviceplugin.core.offers import Granted
from gpushare.deviceplugin.core.pods import PodFacts
from gpushare.deviceplugin.injection.environment import environment
from gpushare.model.gpus import Gpu, Node
from gpushare.model.ledger import PodRecord
from gpushare.model.owner import Owner
from gpushare.model.request import Request
from tests.deviceplugin.requests import request

GPUS = (Gpu(0, 15, uuid="GPU-a"), Gpu(2, 80, uuid="GPU-b"))


def told(asked: Request, units: int, *place: int, unit: Unit = Unit.GIB) -> dict[str, str]:
    """What a container with `units` of the pod's request is told."""
    books = Books(Node("n1", Mode.SHARE, gpus=GPUS, unit=unit), unit, {})
    record = PodRecord(
        uid="u",
        namespace="default",
        name="p",
        node="n1",
        owner=Owner("default", "Pod", "p"),
        request=asked,
    )
    books.put(PodFacts(record, 0, app_names=("c0", "c1")))
    piece: Piece = books.pods["u"].pieces[0]
    return environment(books, Granted(piece, 0, frozenset(map(str, range(units))), place))


def test_one_gpu() -> None:
    assert told(request(3), 3, 2) == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-b",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
        "ALIYUN_COM_GPU_MEM_DEV": "80",
        "ALIYUN_COM_GPU_MEM_POD": "3",
        "ALIYUN_COM_GPU_MEM_IDX": "2",
        "ALIYUN_COM_GPU_MEM_UNIT": "GiB",
    }


def test_the_pods_total_beside_the_containers_part() -> None:
    variables = told(request(3, 4), 4, 0)
    assert variables["ALIYUN_COM_GPU_MEM_CONTAINER"] == "4"
    assert variables["ALIYUN_COM_GPU_MEM_POD"] == "7"


def test_several_gpus_are_lists_in_one_order_and_the_amount_is_per_gpu() -> None:
    variables = told(request(8, gpu_count=2), 8, 0, 2)
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert variables["ALIYUN_COM_GPU_MEM_CONTAINER"] == "4"
    assert variables["ALIYUN_COM_GPU_MEM_DEV"] == "15,80"
    assert variables["ALIYUN_COM_GPU_MEM_IDX"] == "0,2"
    assert variables["ALIYUN_COM_GPU_MEM_POD"] == "8"


def test_the_unit() -> None:
    assert told(request(3), 3, 0, unit=Unit.MIB128)["ALIYUN_COM_GPU_MEM_UNIT"] == "128MiB"
