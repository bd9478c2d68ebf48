"""A correction charges a pod as long as it stands."""

from __future__ import annotations

from dataclasses import replace

from gpushare.model.gpus import Assignment, Gpu, Node
from gpushare.model.ledger import Ledger, PodRecord
from gpushare.model.owner import Owner
from gpushare.model.request import ContainerAsk, compile_request

NODE = Node("n1", gpus=(Gpu(0, 15), Gpu(1, 15)))


def pod() -> PodRecord:
    request = compile_request([ContainerAsk(0, 4)])
    assert request is not None
    return PodRecord(
        "u1",
        "default",
        "p",
        "n1",
        Owner("default", "Job", "j"),
        request,
        Assignment({0: {0: 4}}, {}),
    )


def used(ledger: Ledger) -> list[int]:
    return [gpu.used for gpu in ledger.books("n1").gpus]


def test_a_corrected_pod_that_ends_is_charged_until_the_correction_goes() -> None:
    ledger = Ledger()
    corrected = replace(NODE, corrections={"u1": Assignment({0: {1: 4}}, {})})
    ledger.put_node(corrected)
    ledger.put_pod(pod())
    assert used(ledger) == [0, 4]
    ledger.put_pod(replace(pod(), finished=True))
    assert used(ledger) == [0, 4]
    ledger.remove_pod("u1")
    assert used(ledger) == [0, 4]
    ledger.put_node(NODE)
    assert used(ledger) == [0, 0]


def test_a_pod_without_a_correction_that_ends_holds_nothing() -> None:
    ledger = Ledger()
    ledger.put_node(NODE)
    ledger.put_pod(pod())
    assert used(ledger) == [4, 0]
    ledger.put_pod(replace(pod(), finished=True))
    assert used(ledger) == [0, 0]
