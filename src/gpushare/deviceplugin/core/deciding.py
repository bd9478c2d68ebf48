"""A GPU for a pod that nobody decided, by the node's own policy.

Such a pod was bound by another scheduler, or by hand. To refuse it would make its controller
produce failed pods without end, so it is placed as the extender would have placed it, on what is
really there: ids the kubelet has free, less the room that was promised to pods it has yet to ask
for. A pod whose containers have finished counts until the API server knows: whoever reads the
annotations would else see a GPU above its units.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpushare.deviceplugin.core.books import Books, NodePod, Piece, Place
from gpushare.deviceplugin.core.offers import Free, Offer, counts, take
from gpushare.model.gpus import GpuBooks, NodeBooks
from gpushare.model.owner import Owner
from gpushare.model.request import Request
from gpushare.policy.fit import Refusal, place


def room(books: Books, pieces: Sequence[Piece], free: Mapping[int, int] | None) -> dict[int, int]:
    """GPU index -> units that may be given to `pieces`.

    free   GPU index -> ids the kubelet has free; None where it did not say: what nobody has on the
           books, be it granted or promised
    """
    left = unheld(books, pieces)
    if free is not None:
        promised = books.promised(but=pieces)
        left = {
            index: min(left.get(index, 0), units - promised.get(index, 0))
            for index, units in free.items()
        }
    return {index: max(0, units) for index, units in left.items()}


def unheld(books: Books, pieces: Sequence[Piece] = (), *, ended: bool = True) -> dict[int, int]:
    """GPU index -> units that nobody but `pieces` has a place on, of the GPUs that may be used.

    ended   pods whose containers have finished count too, as they do for readers of the annotations
    """
    mine = {piece.key for piece in pieces}
    left = {gpu.index: gpu.units for gpu in books.node.gpus if gpu.open}
    for piece in books.pieces():
        if piece.place and piece.key not in mine and (ended or not piece.ended):
            for index in piece.place:
                if index in left:
                    left[index] -= piece.units // len(piece.place)
    return left


def decide(
    books: Books, pod: NodePod, pieces: Sequence[Piece], free: Mapping[int, int] | None
) -> list[Place] | Refusal:
    """A place for each of `pieces`, chunks of `pod` that have none; or why there is none."""
    request = pod.facts.record.request
    asked = Request(
        tuple(request.chunks[piece.number] for piece in pieces), gpu_count=request.gpu_count
    )
    answer = place(
        _node_books(books, pieces, room(books, pieces, free)), asked, pod.facts.record.owner
    )
    return answer if isinstance(answer, Refusal) else [tuple(gpus) for gpus in answer.gpus]


def overruled(books: Books, piece: Piece, position: int, free: Free) -> Offer | None:
    """Another place for a chunk whose own has no room."""
    answer = decide(books, books.pod_of(piece), [piece], counts(free))
    if isinstance(answer, Refusal):
        return None
    ids = take(free, answer[0], piece.calls[position].ask.units)
    if ids is None:
        return None
    books.decide(piece, answer[0])
    return Offer(piece, position, ids, answer[0])


def _node_books(books: Books, pieces: Sequence[Piece], room: Mapping[int, int]) -> NodeBooks:
    """The node with exactly `room` left on each GPU, and with the pods that are on each."""
    mine = {piece.key for piece in pieces}
    node = replace(books.node, advertised=None)
    gpus: list[GpuBooks] = []
    for gpu in node.gpus:
        owners: dict[Owner, int] = {}
        pods: set[str] = set()
        for piece in books.pieces():
            if piece.place and gpu.index in piece.place and piece.key not in mine:
                pod = books.pod_of(piece)
                if pod.live and piece.uid not in pods:
                    pods.add(piece.uid)
                    owner = pod.facts.record.owner
                    owners[owner] = owners.get(owner, 0) + 1
        used = gpu.units - min(gpu.units, room.get(gpu.index, 0))
        gpus.append(GpuBooks(gpu, used=used, pods=len(pods), owners=owners))
    return NodeBooks(node, tuple(gpus), used=sum(gpu.used for gpu in gpus))
