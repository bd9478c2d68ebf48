"""Several processes and several containers on the GPU."""

from contextlib import ExitStack

from .machine import MIB
from .program import OUT_OF_MEMORY
from .report import mib
from .setting import GRANULE, Setting

NEIGHBOURS = 3
COMES_BACK_WITHIN_S = 10


def one_budget(s: Setting) -> None:
    """Two processes of a container have one budget; memory passed between them counts once."""
    equal = s.report.equal
    container = s.container()
    with container.program() as one, container.program("per-thread") as other:
        room = s.limit - 2 * s.reserve
        equal("6 the first of two processes gets its memory", one.allocate(512 * MIB)[0], 0)
        equal("6 the other one sees it", other.info()[0], room - 512 * MIB)
        over = other.allocate(room - 512 * MIB + GRANULE)[0]
        equal("6 the other one beyond what is left", over, OUT_OF_MEMORY)
        result, pointer = other.allocate(room - 512 * MIB - GRANULE)
        equal("6 the other one up to it", result, 0)
        equal("6 the first one, when all is gone", one.allocate(2 * GRANULE)[0], OUT_OF_MEMORY)
        if result == 0:
            other.free(pointer)

        size = 256 * MIB
        result, handle = one.physical(size, exportable=True)
        equal("6 memory to export", result, 0)
        answer, fd = one.call("cuMemExportToShareableHandle", one.put(2, b""), handle, 1, 0)
        equal("6 its export", answer, 0)
        opened, copy = other.ask(f"open {one.pid} {fd & 0xFFFFFFFF}")
        if opened != "0":
            s.report.omit("memory passed between processes: pidfd_getfd is not allowed here")
            return
        imported = other.made("cuMemImportFromShareableHandle", "@0", copy, 1)
        other.mapped(imported, size)
        equal("6 exported and imported, charged", container.used(), s.limit - room + 768 * MIB)
        one.kill()
        equal(
            "6 the exporter is dead, the importer pays",
            other.info()[0],
            s.limit - s.reserve - size,
        )


def killed(s: Setting) -> None:
    """SIGKILL: when the memory is back, when its part of the budget, and a neighbour meanwhile."""
    container = s.container()
    with s.container().program() as neighbour, container.program() as heir:
        held, _ = neighbour.allocate(s.room - GRANULE)
        s.report.equal("6 a neighbour's memory", held, 0)
        before = s.machine.memory().used
        with container.program() as victim:
            s.report.equal("6 the victim's memory", victim.allocate(1024 * MIB)[0], 0)
            free = heir.info()[0]
            victim.kill()
            conditions = {
                "the budget": lambda: heir.info()[0] == s.room,
                "the memory": lambda: s.machine.memory().used <= before + GRANULE,
            }
            back = s.wait_each(conditions, COMES_BACK_WITHIN_S)
        s.report.equal("6 seen by the heir before", free, s.room - s.reserve - 1024 * MIB)
        for what in conditions:
            s.report.check(
                f"6 {what} after SIGKILL",
                what in back,
                f"back in {COMES_BACK_WITHIN_S} s",
                "it is not",
            )
        times = ", ".join(f"{what} in {seconds * 1e3:.0f} ms" for what, seconds in back.items())
        print(f"After SIGKILL came back: {times}.")
        s.report.equal("6 the neighbour is at its limit", neighbour.info()[0], GRANULE)
        s.report.equal(
            "6 the neighbour, beyond it", neighbour.allocate(2 * GRANULE)[0], OUT_OF_MEMORY
        )


def full_gpu(s: Setting) -> None:
    """The whole GPU given to containers, each at its limit at the same time."""
    s.wait(lambda: s.machine.memory().used <= 64 * MIB, 2)
    memory = s.machine.memory()
    if memory.used > 64 * MIB:
        s.report.omit(f"a GPU full of containers: {mib(memory.used)} MiB of it are in use")
        return
    limit = memory.usable // MIB // NEIGHBOURS * MIB
    room = (limit - s.reserve) // GRANULE * GRANULE
    with ExitStack() as stack:
        for number in range(1, NEIGHBOURS + 1):
            program = stack.enter_context(s.container(limit).program())
            result, _ = program.allocate(room)
            s.report.equal(f"6 container {number} of {NEIGHBOURS}, all of its share", result, 0)
            s.report.equal(
                f"6 container {number} of {NEIGHBOURS}, more", program.allocate(GRANULE)[0], 2
            )
        used = s.machine.memory().used
        print(
            f"{NEIGHBOURS} containers of {mib(limit)} MiB, each at its limit: the GPU has "
            f"{mib(used)} of {mib(memory.usable)} MiB in use."
        )
        s.report.check(
            "6 a GPU full of containers",
            used <= memory.usable,
            f"at most {mib(memory.usable)} MiB in use",
            mib(used),
        )
