"""A container is held to its share on a real kubelet and containerd, over the fake driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpushare.contract import names
from gpushare.deviceplugin.announce import NOT_HELD, NOT_ISOLATED, UNACCOUNTED
from gpushare.isolation.backend import LIBRARY_IN_CONTAINER, LIBRARY_NAME
from gpushare.isolation.limits import MIB
from gpushare_testcluster import wait_for
from gpushare_testcluster.errors import CannotRun
from tests.cluster import extending, gpuimages, injecting, isolating, plugging
from tests.cluster.isolating import GRANULE_MIB
from tests.native.container import OUT_OF_MEMORY
from tests.native.fakes import FakeGpus

if TYPE_CHECKING:
    from gpushare_testcluster.cluster import Cluster

pytestmark = pytest.mark.node

Object = dict[str, Any]

LIMIT_MIB = 4301
"""Of 4 of 15 units of a GPU with 16130 MiB."""
RESERVE_MIB = 512
"""For a context, unless the administrator says otherwise."""
ROOM_MIB = LIMIT_MIB - RESERVE_MIB
"""Beside one context."""
QUIET_MIB = 11828
"""Of the other 11."""


def even(mib: int) -> int:
    """So much of it as whole pages take."""
    return mib - mib % GRANULE_MIB


def used_mib(fakes: FakeGpus) -> int:
    """Of the first GPU, as its driver has it."""
    return int(str(fakes.show()["gpus"][0]["used"])) // MIB


def physically_refused(fakes: FakeGpus) -> int:
    """What did not fit on any GPU."""
    return sum(int(str(gpu["refusals"])) for gpu in fakes.show()["gpus"])


def held(
    program: isolating.Inside, limit_mib: int = LIMIT_MIB, reserve_mib: int = RESERVE_MIB
) -> None:
    """Checks the edge of a program with one context that has allocated nothing yet."""
    room_mib = limit_mib - reserve_mib
    assert program.total == limit_mib
    assert program.free == even(room_mib)
    assert program.granted(room_mib - GRANULE_MIB)
    assert not program.granted(room_mib + GRANULE_MIB)
    assert program.free == even(room_mib)


def not_held(program: isolating.Inside) -> None:
    """Checks that a program can have all of an otherwise idle GPU, and no more."""
    room_mib = plugging.T4_MIB - isolating.CONTEXT_MIB
    assert program.free == room_mib
    assert program.granted(room_mib - GRANULE_MIB)
    assert not program.granted(room_mib + GRANULE_MIB)


# -- the share ------------------------------------------------------------------------------------


START: dict[str, Callable[[Cluster, Path], FakeGpus]] = {
    "by a file": isolating.start,
    "by their driver": isolating.start_on_driver,
}


@pytest.mark.parametrize("known", START)
def test_a_container_is_held_to_its_share(clean_node: Cluster, tmp_path: Path, known: str) -> None:
    """Whichever way the plugin knows the GPUs."""
    cluster = clean_node
    START[known](cluster, tmp_path)
    isolating.run(cluster, isolating.pod(cluster, "some", 4))
    with isolating.attached(cluster, "some") as program:
        held(program)
    assert isolated_by(cluster) == "interposer"


def test_on_a_share_node_it_gets_the_whole_gpu(clean_node: Cluster, tmp_path: Path) -> None:
    cluster = clean_node
    isolating.start(cluster, tmp_path, mode="share")
    isolating.run(cluster, isolating.pod(cluster, "some", 4))
    with isolating.attached(cluster, "some") as program:
        not_held(program)


def test_a_neighbour_is_undisturbed(clean_node: Cluster, tmp_path: Path) -> None:
    """While another is refused, is killed, and starts again with nothing."""
    cluster = clean_node
    fakes = isolating.start(cluster, tmp_path)
    isolating.run(cluster, isolating.pod(cluster, "greedy", 4, restartPolicy="Always"))
    isolating.run(cluster, isolating.pod(cluster, "quiet", 11))
    with isolating.attached(cluster, "quiet") as quiet:
        held(quiet, QUIET_MIB)
        with isolating.attached(cluster, "greedy") as greedy:
            assert greedy.fill() == even(ROOM_MIB)
            assert greedy.free < GRANULE_MIB
            held(quiet, QUIET_MIB)
            greedy.kill()
        isolating.restarted(cluster, "greedy")
        held(quiet, QUIET_MIB)
        assert used_mib(fakes) == isolating.CONTEXT_MIB
        with isolating.attached(cluster, "greedy") as greedy:
            held(greedy)
        held(quiet, QUIET_MIB)
    assert physically_refused(fakes) == 0


def test_a_full_gpu_is_never_asked_for_more_than_it_has(
    clean_node: Cluster, tmp_path: Path
) -> None:
    cluster = clean_node
    fakes = isolating.start(cluster, tmp_path)
    limits = {"seven": (7, 7527), "eight": (8, 8602)}
    for name, (units, _) in limits.items():
        isolating.run(cluster, isolating.pod(cluster, name, units))
    with (
        isolating.attached(cluster, "seven") as seven,
        isolating.attached(cluster, "eight") as eight,
    ):
        for program, (_, limit_mib) in zip((seven, eight), limits.values(), strict=True):
            room_mib = limit_mib - RESERVE_MIB
            assert program.fill() == even(room_mib)
        assert used_mib(fakes) <= plugging.T4_MIB
    assert physically_refused(fakes) == 0


def test_the_processes_of_a_container_share_its_limit(clean_node: Cluster, tmp_path: Path) -> None:
    """What one of them held is there for the others when it is killed."""
    cluster = clean_node
    isolating.start(cluster, tmp_path)
    isolating.run(cluster, isolating.pod(cluster, "some", 4))
    with isolating.attached(cluster, "some") as first:
        with isolating.executed(cluster, "some") as second:
            assert second.pid != first.pid
            assert first.free == even(ROOM_MIB - RESERVE_MIB)
            assert second.fill() == even(ROOM_MIB - RESERVE_MIB)
            assert not first.granted(GRANULE_MIB)
            second.kill()
            second.wait_gone()
        held(first)


def test_each_container_of_a_pod_has_a_limit_of_its_own(
    clean_node: Cluster, tmp_path: Path
) -> None:
    cluster = clean_node
    isolating.start(cluster, tmp_path)
    one = isolating.pod(cluster, "two", 4)
    (first,) = one["spec"]["containers"]
    more = {**first, "name": "c1", "resources": {"limits": {names.RESOURCE_MEM: "8"}}}
    one["spec"]["containers"].append(more)
    isolating.run(cluster, one)
    with (
        isolating.attached(cluster, "two", "c0") as small,
        isolating.attached(cluster, "two", "c1") as large,
    ):
        held(small)
        held(large, 8602)


def test_a_share_that_a_context_would_fill_is_refused(clean_node: Cluster, tmp_path: Path) -> None:
    """A larger share has what is left."""
    cluster = clean_node
    isolating.start(cluster, tmp_path, "--reserve-mib", "1075")
    cluster.admin.create(isolating.pod(cluster, "small", 1))
    wait_for(lambda: phase(cluster, "small") == "Failed", 20, "it is refused")
    message = cluster.admin.get("pods", "small")["status"]["message"]
    print(message)
    assert "are 1075 MiB, and a CUDA context alone takes 1075 MiB" in message
    isolating.run(cluster, isolating.pod(cluster, "larger", 4))
    with isolating.attached(cluster, "larger") as program:
        held(program, reserve_mib=1075)


@pytest.mark.parametrize("allowed", [False, True])
def test_a_node_that_cannot_isolate_takes_pods_only_where_allowed(
    clean_node: Cluster, tmp_path: Path, allowed: bool
) -> None:
    cluster = clean_node
    options, units = (("--allow-unisolated",), 15) if allowed else ((), 0)
    isolating.start_on_driver(cluster, tmp_path, *options, library=False, units=units)
    print(cluster.wait_event(cluster.node.name, NOT_ISOLATED)["message"])
    wait_for(lambda: isolated_by(cluster) == "none", 5, "the node's label says so")
    assert cluster.node.allocatable(names.RESOURCE_MEM) == units
    if allowed:
        isolating.run(cluster, isolating.pod(cluster, "some", 4))
        with isolating.attached(cluster, "some") as program:
            not_held(program)


def isolated_by(cluster: Cluster) -> str | None:
    labels = cluster.admin.get("nodes", cluster.node.name)["metadata"]["labels"]
    found: str | None = labels.get(names.LABEL_ISOLATION)
    return found


def phase(cluster: Cluster, name: str) -> str:
    return str(cluster.admin.get("pods", name)["status"].get("phase"))


# -- what a pod brings along ----------------------------------------------------------------------


OWN_LIST = "/nothing/of/ours.so\n"
PRELOAD_LIST = "/etc/ld.so.preload"


def mount_own_list(one: Object, folder: Path) -> Object:
    """What somebody does who knows how programs are held."""
    (folder / "own").write_text(OWN_LIST)
    volume = {"hostPath": {"path": str(folder)}}
    isolating.add_mount(one, "own", volume, mountPath=PRELOAD_LIST, subPath="own")
    return one


@pytest.fixture
def config_map(clean_node: Cluster) -> Iterator[str]:
    """With a list of its own."""
    meta = {"name": "own-list", "namespace": "default"}
    one = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"list": OWN_LIST}}
    clean_node.admin.create(one)
    yield meta["name"]
    clean_node.admin.delete("configmaps", meta["name"])


def test_nothing_that_a_pod_brings_along_unlimits_it(
    clean_node: Cluster, config_map: str, tmp_path: Path
) -> None:
    cluster = clean_node
    isolating.start(cluster, tmp_path, gpus=2)
    file = mount_own_list(isolating.pod(cluster, "file", 4), tmp_path)
    mapped = isolating.pod(cluster, "mapped", 4)
    volume = {"configMap": {"name": config_map}}
    isolating.add_mount(mapped, "own", volume, mountPath=PRELOAD_LIST, subPath="list")
    folders = isolating.pod(cluster, "folders", 4)
    for number, path in enumerate(("/etc", "/etc/gpushare", "/usr/lib/gpushare")):
        isolating.add_mount(folders, f"own{number}", {"emptyDir": {}}, mountPath=path)
    env = {
        names.ENV_VISIBLE_DEVICES: "all",
        names.ENV_DISABLE_ISOLATION: "true",
        "LD_PRELOAD": "",
        "LD_BIND_NOW": "1",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    variables = isolating.pod(cluster, "variables", 4, env=env)
    for one in (file, mapped, folders, variables):
        name = isolating.run(cluster, one)
        number = next(iter(extending.gpus_of(cluster.admin.get("pods", name))))
        with isolating.attached(cluster, name, device=number) as program:
            held(program)


def test_a_gpu_that_is_not_its_own_is_refused(clean_node: Cluster, tmp_path: Path) -> None:
    """A driver that shows the program every GPU, as in a privileged container."""
    cluster = clean_node
    isolating.start(cluster, tmp_path, gpus=2)
    isolating.run(cluster, isolating.pod(cluster, "some", 4))
    with isolating.attached(cluster, "some", device=None) as program:
        assert program.result("init 1") == OUT_OF_MEMORY


@pytest.mark.parametrize("allowed", [False, True])
def test_opting_out_is_the_administrators_to_allow(
    clean_node: Cluster, tmp_path: Path, allowed: bool
) -> None:
    cluster = clean_node
    isolating.start(cluster, tmp_path, *(["--allow-cgpu-disable"] if allowed else []))
    opted_out = {names.ENV_DISABLE_ISOLATION: "true"}
    isolating.run(cluster, isolating.pod(cluster, "free", 4, env=opted_out))
    with isolating.attached(cluster, "free") as program:
        (not_held if allowed else held)(program)


# -- whose program it is --------------------------------------------------------------------------


def test_an_ordinary_user_is_held(clean_node: Cluster, tmp_path: Path) -> None:
    """With everything taken away that a careful manifest takes away."""
    cluster = clean_node
    isolating.start(cluster, tmp_path)
    careful = {
        "securityContext": {
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "runAsNonRoot": True,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }
    }
    isolating.run(cluster, isolating.pod(cluster, "careful", 4, container=careful))
    with isolating.attached(cluster, "careful") as program:
        held(program)


def test_a_user_namespace_changes_nothing(clean_node: Cluster, tmp_path: Path) -> None:
    cluster = clean_node
    if reason := isolating.why_no_user_namespaces(cluster):
        pytest.skip(reason)
    isolating.start(cluster, tmp_path)
    with isolating.user_namespaces(cluster):
        isolating.run(cluster, isolating.pod(cluster, "mapped", 4, hostUsers=False))
        with isolating.attached(cluster, "mapped") as program:
            _, outside, _ = Path(f"/proc/{program.pid}/uid_map").read_text().split()
            assert outside != "0"
            held(program)


# -- which image it is in -------------------------------------------------------------------------


def test_an_images_own_list_gives_way(clean_node: Cluster, tmp_path: Path) -> None:
    """What it would preload is not loaded."""
    cluster = clean_node
    isolating.start(cluster, tmp_path)
    one = isolating.pod(cluster, "own", 4, image=gpuimages.own_preload())
    isolating.run(cluster, one)
    with isolating.attached(cluster, "own") as program:
        held(program)
        assert LIBRARY_IN_CONTAINER in program.maps
        assert gpuimages.OWN_LIBRARY not in program.maps


def test_on_a_share_node_an_images_own_list_stays(clean_node: Cluster, tmp_path: Path) -> None:
    cluster = clean_node
    isolating.start(cluster, tmp_path, mode="share")
    one = isolating.pod(cluster, "own", 4, image=gpuimages.own_preload())
    isolating.run(cluster, one)
    with isolating.attached(cluster, "own") as program:
        assert LIBRARY_IN_CONTAINER not in program.maps
        assert gpuimages.OWN_LIBRARY in program.maps


def test_an_image_with_nothing_but_the_program_is_held(clean_node: Cluster, tmp_path: Path) -> None:
    cluster = clean_node
    isolating.start(cluster, tmp_path)
    image = gpuimages.distroless()
    isolating.run(cluster, isolating.pod(cluster, "bare", 4, image=image))
    with isolating.attached(cluster, "bare") as program:
        held(program)


def test_a_program_for_musl_runs_and_is_not_held(clean_node: Cluster, tmp_path: Path) -> None:
    """As it is documented: it loads no library of ours and starts all the same.

    That is told of the pod, for what it has loaded, and of the GPU, for what is used of it.
    """
    try:
        image = gpuimages.musl()
    except CannotRun as error:
        pytest.skip(str(error))
    cluster = clean_node
    fakes = isolating.start_on_driver(cluster, tmp_path)
    isolating.run(cluster, isolating.pod(cluster, "musl", 4, image=image))
    with isolating.attached(cluster, "musl") as program:
        assert LIBRARY_IN_CONTAINER not in program.maps
        not_held(program)
        assert program.handle(f"alloc {LIMIT_MIB * MIB}")
        assert used_mib(fakes) >= LIMIT_MIB
        assert "for musl" in isolating.unprotected(cluster, "musl")
        print(cluster.wait_event(cluster.node.name, UNACCOUNTED, timeout_s=40)["message"])


# -- over time ------------------------------------------------------------------------------------


def test_a_container_that_restarts_starts_clean(clean_node: Cluster, tmp_path: Path) -> None:
    cluster = clean_node
    isolating.start(cluster, tmp_path)
    isolating.run(cluster, isolating.pod(cluster, "again", 4, restartPolicy="Always"))
    with isolating.attached(cluster, "again") as program:
        program.fill()
        program.kill()
    isolating.restarted(cluster, "again")
    with isolating.attached(cluster, "again") as program:
        held(program)


def test_the_limit_outlives_the_plugin(clean_node: Cluster, tmp_path: Path) -> None:
    """Of a program that runs, and of a container that restarts."""
    cluster = clean_node
    isolating.start(cluster, tmp_path)
    isolating.run(cluster, isolating.pod(cluster, "stays", 4, restartPolicy="Always"))
    with isolating.attached(cluster, "stays") as program:
        assert program.handle(f"alloc {1024 * MIB}")
        cluster.node.restart_plugin(hard=True, ready="/readyz")
        assert program.free == even(ROOM_MIB - 1024)
        assert program.fill() == even(ROOM_MIB - 1024)
        program.kill()
    isolating.restarted(cluster, "stays")
    with isolating.attached(cluster, "stays") as program:
        held(program)


def test_a_container_that_restarts_without_the_plugin_is_held(
    clean_node: Cluster, tmp_path: Path
) -> None:
    cluster = clean_node
    isolating.start(cluster, tmp_path)
    isolating.run(cluster, isolating.pod(cluster, "stays", 4, restartPolicy="Always"))
    cluster.node.stop_plugin(hard=True)
    with isolating.attached(cluster, "stays") as program:
        program.fill()
        program.kill()
    isolating.restarted(cluster, "stays")
    with isolating.attached(cluster, "stays") as program:
        held(program)


def test_a_container_keeps_its_build_of_the_library(clean_node: Cluster, tmp_path: Path) -> None:
    """When a plugin comes that brings another, and when it restarts after that."""
    cluster = clean_node
    isolating.start(cluster, tmp_path)
    old = injecting.library().read_bytes()
    new = tmp_path / LIBRARY_NAME
    new.write_bytes(old + b"another build")
    isolating.run(cluster, isolating.pod(cluster, "older", 4, restartPolicy="Always"))
    isolating.start_anew(cluster, new)
    with isolating.attached(cluster, "older") as program:
        held(program)
        program.kill()
    isolating.restarted(cluster, "older")
    isolating.run(cluster, isolating.pod(cluster, "newer", 4))
    for name, library in (("older", old), ("newer", new.read_bytes())):
        with isolating.attached(cluster, name) as program:
            held(program)
            assert program.library == library


def test_the_limit_outlives_a_reboot(clean_node: Cluster, tmp_path: Path) -> None:
    cluster, node = clean_node, clean_node.node
    fakes = isolating.start(cluster, tmp_path)
    name = isolating.deploy(cluster, isolating.pod(cluster, "web", 4, restartPolicy="Always"))
    with isolating.attached(cluster, name) as program:
        held(program)
        program.fill()
        node.power_off()
    node.power_on()
    isolating.specify(cluster, fakes)
    node.restart_plugin(ready="/readyz")
    name = isolating.deployed(cluster, "web")
    with isolating.attached(cluster, name) as program:
        held(program)


@pytest.mark.parametrize("how", ["removed", "emptied"])
def test_without_the_library_no_container_starts(
    clean_node: Cluster, tmp_path: Path, how: str
) -> None:
    """Not even its first instruction."""
    cluster = clean_node
    isolating.start(cluster, tmp_path)
    isolating.run(cluster, isolating.pod(cluster, "some", 4, restartPolicy="Always"))
    cluster.node.stop_plugin(hard=True)
    take_away_library(cluster, how)
    with isolating.attached(cluster, "some") as program:
        program.kill()
    text = {"removed": "no such file or directory", "emptied": "gpushare-hook: container refused"}
    message = isolating.refusal(cluster, "some", text[how])
    print(message)
    assert LIBRARY_NAME in message
    assert not cluster.node.containers()


@pytest.mark.parametrize("how", ["removed", "emptied", "a folder"])
def test_the_library_is_installed_again_for_a_new_pod(
    clean_node: Cluster, tmp_path: Path, how: str
) -> None:
    cluster = clean_node
    isolating.start(cluster, tmp_path)
    take_away_library(cluster, how)
    isolating.run(cluster, isolating.pod(cluster, "some", 4))
    with isolating.attached(cluster, "some") as program:
        held(program)


def test_what_is_removed_under_a_container_is_made_again(
    clean_node: Cluster, tmp_path: Path
) -> None:
    """By the plugin that runs; until then it is not started again."""
    cluster = clean_node
    isolating.start(cluster, tmp_path)
    isolating.run(cluster, isolating.pod(cluster, "some", 4, restartPolicy="Always"))
    take_away_library(cluster, "removed")
    isolating.take_away_files(cluster)
    with isolating.attached(cluster, "some") as program:
        program.kill()
    isolating.refusal(cluster, "some", "no such file or directory")
    isolating.restarted(cluster, "some", timeout_s=60)
    with isolating.attached(cluster, "some") as program:
        held(program)


def take_away_library(cluster: Cluster, how: str) -> None:
    """From the node; nothing that runs loses what it has loaded."""
    (library,) = cluster.node.gpushare_dir.glob(f"**/{LIBRARY_NAME}")
    library.unlink()
    if how == "emptied":
        library.touch()
    if how == "a folder":  # as a runtime makes of a mount's source that is not there
        library.mkdir()


# -- where CDI does not work ----------------------------------------------------------------------


WITHOUT_CDI = ("--injection", "env")


def test_without_cdi_a_container_is_held(clean_node: Cluster, tmp_path: Path) -> None:
    cluster = clean_node
    fakes = isolating.start(cluster, tmp_path, *WITHOUT_CDI)
    one = isolating.mount_driver(isolating.pod(cluster, "some", 4, restartPolicy="Always"), fakes)
    isolating.run(cluster, one)
    with isolating.attached(cluster, "some") as program:
        held(program)
        program.fill()
        program.kill()
    isolating.restarted(cluster, "some")
    with isolating.attached(cluster, "some") as program:
        held(program)


def test_without_cdi_a_pods_own_list_wins_and_is_told_of(
    clean_node: Cluster, tmp_path: Path
) -> None:
    cluster = clean_node
    fakes = isolating.start(cluster, tmp_path, *WITHOUT_CDI)
    isolating.run(cluster, isolating.mount_driver(isolating.pod(cluster, "good", 4), fakes))
    with isolating.attached(cluster, "good") as good:
        held(good)
        one = mount_own_list(isolating.pod(cluster, "own", 4), tmp_path)
        isolating.run(cluster, isolating.mount_driver(one, fakes))
        with isolating.attached(cluster, "own") as own:
            assert own.granted(LIMIT_MIB + GRANULE_MIB)
            print(isolating.unprotected(cluster, "own"))
    print(cluster.wait_event("own", NOT_HELD)["message"])
    notes = cluster.admin.get("pods", "good")["metadata"]["annotations"]
    assert names.ANNOTATION_UNPROTECTED not in notes  # looked at as often


def test_without_cdi_and_the_library_it_is_told_of(clean_node: Cluster, tmp_path: Path) -> None:
    cluster = clean_node
    fakes = isolating.start(cluster, tmp_path, *WITHOUT_CDI)
    one = isolating.mount_driver(isolating.pod(cluster, "some", 4, restartPolicy="Always"), fakes)
    isolating.run(cluster, one)
    cluster.node.stop_plugin(hard=True)  # which would install it again
    take_away_library(cluster, "removed")
    with isolating.attached(cluster, "some") as program:
        program.kill()
    isolating.restarted(cluster, "some")
    cluster.node.restart_plugin(ready="/readyz")
    with isolating.attached(cluster, "some") as program:
        not_held(program)
        print(isolating.unprotected(cluster, "some"))
