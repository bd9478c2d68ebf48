"""`gpushare COMMAND …`: finds the program and hands over.

Each program is imported only when it is asked for: `simulate` and `inspect` need nothing but the
base install, the others their extras, and a missing one is said with the command that installs it.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

Main = Callable[[Sequence[str] | None, str | None], int]


@dataclass(frozen=True, slots=True)
class Command:
    module: str
    """Has `main(argv, prog)`."""
    summary: str
    extra: str | None = None
    """Extra of the distribution that it needs."""


COMMANDS = {
    "simulate": Command("gpushare.simulate.main", "where would these pods go? Needs no cluster"),
    "inspect": Command("gpushare.inspect.main", "who holds what (also: kubectl inspect cgpu)"),
    "extender": Command("gpushare.extender.main", "beside kube-scheduler", "extender"),
    "device-plugin": Command("gpushare.deviceplugin.main", "on every GPU node", "node"),
}

_USAGE = "usage: gpushare COMMAND [OPTION]...\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status; 2 for a command that there is not or that is
    not installed."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return 0 if arguments else 2
    name, *rest = arguments
    if name in ("--version", "version"):
        from importlib.metadata import version  # slow to import, and seldom needed

        sys.stdout.write(f"gpushare {version('kube-gpushare')}\n")
        return 0
    command = COMMANDS.get(name)
    if command is None:
        sys.stderr.write(f"gpushare: there is no command {name!r}\n\n{_help()}")
        return 2
    return _load(name, command)(rest, f"gpushare {name}")


def _help() -> str:
    width = max(len(name) for name in COMMANDS)
    lines = "".join(f"  {name:{width}}  {c.summary}\n" for name, c in COMMANDS.items())
    return (
        f"{_USAGE}\nGPU sharing for Kubernetes: several pods share one GPU, by GPU memory.\n\n"
        f"{lines}\ngpushare COMMAND -h says more. A first try, without a cluster:\n"
        "  gpushare simulate --node name=a,gpus=4x15,placement=spread job.yaml\n"
    )


def _load(name: str, command: Command) -> Main:
    """The command's main. Exits with status 2 where it, or a package that it needs, is missing."""
    try:
        module = import_module(command.module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.startswith("gpushare"):
            sys.stderr.write(f"gpushare {name}: not part of this version\n")
        elif command.extra is not None:
            sys.stderr.write(
                f"gpushare {name}: the package {missing} is missing; install the extra: "
                f"pip install 'kube-gpushare[{command.extra}]'\n"
            )
        else:
            raise
        raise SystemExit(2) from None
    main_: Main = module.main
    return main_


if __name__ == "__main__":
    sys.exit(main())
