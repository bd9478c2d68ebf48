"""The cluster's GPUs as metrics: one series per GPU, made from the books when somebody asks.

Thousands of nodes are tens of thousands of series, and between two scrapes few nodes change. So
the lines of a node are kept, and a scrape makes those anew whose books have changed; the event
loop, which answers the scheduler meanwhile, is held up for milliseconds only.
"""

from collections.abc import Callable
from typing import Final

from gpushare.contract.names import Metric
from gpushare.model.gpus import GpuBooks, NodeBooks
from gpushare.model.ledger import Ledger

_PER_GPU: Final[tuple[tuple[Metric, str, Callable[[GpuBooks], int]], ...]] = (
    (Metric.GPU_CAPACITY, "Units a GPU offers.", lambda gpu: gpu.gpu.units),
    (Metric.GPU_ALLOCATED, "Units held on a GPU.", lambda gpu: gpu.used),
    (Metric.GPU_HEALTHY, "1 if the GPU is healthy.", lambda gpu: int(gpu.gpu.healthy)),
    (Metric.GPU_CORDONED, "1 if the GPU takes nothing new.", lambda gpu: int(gpu.gpu.cordoned)),
    (Metric.GPU_PODS, "Pods that hold something on a GPU.", lambda gpu: gpu.pods),
)
_PENDING_TEXT: Final = "Units held on a node by pods whose GPU is not known."


class Gauges:
    """Renders `ledger`; keeps what it rendered."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._seen = -1
        self._lines: dict[str, tuple[str, ...]] = {}
        """Node name -> its lines, one text per metric of `_PER_GPU`, then the pending units."""

    def text(self) -> bytes:
        """The lines of all nodes with GPUs, in Prometheus' text format."""
        self._refresh()
        parts: list[str] = []
        heads = [(name, text) for name, text, _ in _PER_GPU] + [
            (Metric.NODE_PENDING, _PENDING_TEXT)
        ]
        for number, (name, text) in enumerate(heads):
            parts.append(f"# HELP {name} {text}\n# TYPE {name} gauge\n")
            parts.extend(lines[number] for lines in self._lines.values())
        return "".join(parts).encode()

    def _refresh(self) -> None:
        ledger = self._ledger
        names = list(ledger) if self._seen < 0 else list(ledger.changed_since(self._seen))
        self._seen = ledger.generation
        for name in names:
            books = ledger.get_books(name)
            if books is None or not (books.gpus or books.pending):
                self._lines.pop(name, None)
            else:
                self._lines[name] = _render(books)


def _render(books: NodeBooks) -> tuple[str, ...]:
    node = _escaped(books.node.name)
    labels = [
        f'{{node="{node}",gpu="{gpu.gpu.index}",uuid="{_escaped(gpu.gpu.uuid or "")}"}}'
        for gpu in books.gpus
    ]
    per_gpu = (
        "".join(
            f"{name}{label} {value(gpu)}\n" for label, gpu in zip(labels, books.gpus, strict=True)
        )
        for name, _, value in _PER_GPU
    )
    return (*per_gpu, f'{Metric.NODE_PENDING}{{node="{node}"}} {books.pending}\n')


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
