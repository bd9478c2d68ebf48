"""What the interposer costs: the same calls bare and held, in turn, the best of several runs."""

from .memory import kernel, launch
from .program import Program
from .setting import Setting

ROUNDS = 5
CALLS, PAIRS, LAUNCHES = 200_000, 2_000, 2_000
MOST_UNHOOKED, MOST_PAIR = 1.25, 3.0
"""Aims, as ratios. A fake driver's calls take nanoseconds and a busy machine shows in them."""
MOST_UNHOOKED_FAKE, MOST_PAIR_FAKE = 2.5, 6.0


def _measure(program: Program) -> dict[str, float]:
    def timed(command: str) -> float:
        result, nanoseconds = program.ask(command)
        if int(result):
            raise RuntimeError(f"{command[:60]!r} answers {result}")
        return float(nanoseconds)

    times = {
        "cuMemAlloc and cuMemFree, 4 KiB": timed(f"pair {PAIRS} 4096"),
        "cuMemAlloc and cuMemFree, 64 MiB": timed(f"pair {PAIRS // 10} {64 << 20}"),
        "cuMemGetInfo": timed(f"time {PAIRS} cuMemGetInfo_v2 @0 @1"),
        "cuCtxGetCurrent (not hooked)": timed(f"time {CALLS} cuCtxGetCurrent @0"),
    }
    if (function := kernel(program)) is not None:
        words = " ".join(launch(function, program.stream))
        times["kernel launch (not hooked)"] = timed(f"time {LAUNCHES} {words}")
        program.must("cuCtxSynchronize")
    return times


def ratios(s: Setting) -> None:
    best: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for _ in range(ROUNDS):
        for held, times in enumerate(best):
            with s.container(held=bool(held)).program() as program:
                for name, nanoseconds in _measure(program).items():
                    times[name] = min(times.get(name, nanoseconds), nanoseconds)
    rows = []
    for name, bare in best[0].items():
        ratio = best[1][name] / bare
        rows.append((name, f"{bare:.0f}", f"{best[1][name]:.0f}", f"{ratio:.2f}"))
        if "not hooked" in name:
            most = MOST_UNHOOKED_FAKE if s.machine.fake else MOST_UNHOOKED
        elif "cuMemFree" in name:
            most = MOST_PAIR_FAKE if s.machine.fake else MOST_PAIR
        else:
            continue
        s.report.check(
            f"7 {name}, held over bare", ratio <= most, f"at most {most} x", f"{ratio:.2f} x"
        )
    s.report.table(("call", "bare, ns", "held, ns", "ratio"), rows)
