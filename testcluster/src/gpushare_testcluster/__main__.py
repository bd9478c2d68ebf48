"""The command `gpushare-testcluster`: up, down, status, demo."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path

from gpushare_testcluster import lifecycle
from gpushare_testcluster.cluster import EXTENDER, Cluster
from gpushare_testcluster.errors import TestClusterError
from gpushare_testcluster.node import requirements
from gpushare_testcluster.node.layout import DEFAULT_NAME
from gpushare_testcluster.say import Say
from gpushare_testcluster.state import StateDir, default_dir

GPUSHARE_EXTENDER = "gpushare extender --kubeconfig {kubeconfig} --listen {listen}"


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns the exit status: 0, 1 (it failed, said why) or 130 (Ctrl-C)."""
    args = _parser().parse_args(argv)
    say = Say()
    state = StateDir(args.dir or default_dir())
    try:
        return int(args.run(args, state, say))
    except TestClusterError as error:
        print(f"gpushare-testcluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("gpushare-testcluster: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpushare-testcluster",
        description="A real Kubernetes control plane on this machine's loopback, with gpushare's "
        "extender in its scheduler. Everything is in one folder; `down` removes it.",
    )
    commands = parser.add_subparsers(required=True, metavar="up|down|status|demo")

    def command(
        name: str, run: object, text: str, folder: str = str(default_dir())
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        sub.add_argument("--dir", type=Path, help=f"the cluster's folder (default: {folder})")
        return sub

    up = command("up", _up, "Start a cluster and return when it is ready.")
    up.add_argument(
        "--nodes", type=int, default=0, metavar="N", help="fake nodes, each with 4 GPUs of 15 GiB"
    )
    up.add_argument(
        "--node",
        action="store_true",
        help=f"a real node as well, {DEFAULT_NAME}: kubelet and containerd (needs root)",
    )
    up.add_argument(
        "--extender-command",
        metavar="COMMAND",
        default=GPUSHARE_EXTENDER,
        help="what to start as the extender; {kubeconfig} and {listen} are filled in "
        "(default: %(default)s)",
    )
    up.add_argument("--no-extender", action="store_true", help="start none; GPU pods then wait")
    up.add_argument("--deploy", type=Path, metavar="DIR", help="manifests (default: the clone's)")
    up.add_argument("-v", "--verbosity", type=int, default=1, help="of the Kubernetes processes")
    command("down", _down, "End the cluster's processes and remove its folder.")
    command("status", _status, "Say what runs. Exit status 1 when there is no whole cluster.")
    text = "Show the whole of gpushare on fake GPUs, and take everything down again. Needs root."
    command("demo", _demo, text, "a new one under /tmp")
    return parser


def _up(args: argparse.Namespace, state: StateDir, say: Say) -> int:
    if state.exists():
        cluster = Cluster(state)
        if all(cluster.processes.running(record.name) for record in cluster.processes.records()):
            say.note(f"The cluster in {state.path} is running already.")
            _next_steps(cluster, say)
            return 0
        say.note(f"Removing what is left of an earlier cluster in {state.path}.")
        lifecycle.take_down(state, say)
    if args.node:
        requirements.require(say)  # before the control plane is started for nothing
    start = time.monotonic()
    say.note(f"Starting a Kubernetes control plane in {state.path}")
    cluster = Cluster.start(
        state.path,
        large=args.nodes > 100,
        owned=False,
        deploy=args.deploy,
        verbosity=args.verbosity,
        say=say,
    )
    try:
        _furnish(args, cluster, say)
    except BaseException:
        cluster.stop(say)
        raise
    say.note(f"Ready after {time.monotonic() - start:.0f} s.")
    _next_steps(cluster, say)
    return 0


def _furnish(args: argparse.Namespace, cluster: Cluster, say: Say) -> None:
    from gpushare_testcluster.nodes import node_object

    cluster.play_kubelet()
    if args.no_extender:
        say.note("No extender was asked for: pods that ask for aliyun.com/gpu-mem stay Pending.")
    else:
        argv = shlex.split(args.extender_command)
        beside = Path(sys.executable).parent / argv[0]
        if beside.exists():
            argv[0] = str(beside)
        with say.step(f"the extender: {argv[0]}"):
            cluster.start_extender(argv)
    if args.node:
        cluster.start_node(say=say)
    if args.nodes:
        with say.step(f"{args.nodes} fake nodes with 4 GPUs of 15 GiB"):
            cluster.add_nodes(
                [node_object(f"node-{i}", gpus=[15] * 4) for i in range(1, args.nodes + 1)]
            )


def _next_steps(cluster: Cluster, say: Say) -> None:
    own = "" if cluster.dir == default_dir().absolute() else f" --dir {cluster.dir}"
    say.note(
        f"Next:\n  export KUBECONFIG={cluster.kubeconfig}\n  kubectl get nodes\n"
        f"  gpushare-testcluster down{own}"
    )


def _down(args: argparse.Namespace, state: StateDir, say: Say) -> int:
    if lifecycle.take_down(state, say):
        say.note(f"The cluster in {state.path} is gone.")
    else:
        say.note(f"There is no cluster in {state.path}.")
    return 0


def _status(args: argparse.Namespace, state: StateDir, say: Say) -> int:
    cluster = Cluster(state)
    whole = True
    for record in cluster.processes.records():
        running = cluster.processes.running(record.name)
        whole &= running
        print(f"{record.name:<26} {f'running, pid {record.pid}' if running else 'not running'}")
    ready = cluster.admin.ready()
    print(f"{'API server':<26} {cluster.server} {'ready' if ready else 'does not answer'}")
    if ready:
        print(f"{'nodes':<26} {len(cluster.admin.list('nodes'))}")
    if not cluster.processes.running(EXTENDER):
        print(f"{'extender':<26} none; kube-scheduler calls 127.0.0.1:{cluster.extender_port}")
    print(f"{'logs':<26} {state.logs}")
    print(f"{'kubeconfig':<26} {cluster.kubeconfig}")
    return 0 if whole and ready else 1


def _demo(args: argparse.Namespace, state: StateDir, say: Say) -> int:
    from gpushare_testcluster import demo

    return demo.run(args.dir)


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
