"""The CDI hook, run as the container runtime runs it: a process with the OCI state on its input."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

GPU = "GPU-00000000-0000-4000-8000-000000000001"
OTHER = "GPU-00000000-0000-4000-8000-000000000002"
CONTAINERD = {
    "io.kubernetes.cri.sandbox-uid": "0c5a2c5e-uid",
    "io.kubernetes.cri.sandbox-name": "app-0",
    "io.kubernetes.cri.sandbox-namespace": "shop",
    "io.kubernetes.cri.container-name": "main",
}
CRIO = {
    "io.kubernetes.pod.uid": "0c5a2c5e-uid",
    "io.kubernetes.pod.name": "app-0",
    "io.kubernetes.pod.namespace": "shop",
    "io.kubernetes.container.name": "main",
}


@dataclass
class Runtime:
    """Plays the container runtime: writes a bundle and runs the hook on it."""

    hook: Path
    folder: Path

    @property
    def mailbox(self) -> Path:
        return self.folder / "mailbox"

    def config(
        self,
        env: tuple[str, ...] = (f"NVIDIA_VISIBLE_DEVICES={GPU}",),
        devices: tuple[str, ...] = (),
        **more: Any,
    ) -> dict[str, Any]:
        return {
            "ociVersion": "1.2.0",
            "process": {"args": ["true"], "env": ["PATH=/bin", *env]},
            "root": {"path": "rootfs"},
            "linux": {"devices": [{"path": path, "type": "c"} for path in devices]},
            **more,
        }

    def run(
        self,
        *arguments: str,
        config: dict[str, Any] | bytes | None = None,
        annotations: dict[str, str] = CONTAINERD,
        state: bytes | None = None,
    ) -> subprocess.CompletedProcess[str]:
        bundle = self.folder / "bundle"
        bundle.mkdir(exist_ok=True)
        content = self.config() if config is None else config
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        (bundle / "config.json").write_bytes(raw)
        if state is None:
            state = json.dumps(
                {
                    "ociVersion": "1.2.0",
                    "id": "c0ffee",
                    "status": "creating",
                    "pid": 4711,
                    "bundle": str(bundle),
                    "annotations": annotations,
                }
            ).encode()
        words = arguments or ("attest", "--mailbox", str(self.mailbox), "--gpu", GPU)
        done = subprocess.run(
            [self.hook, *words], input=state, capture_output=True, cwd=bundle, timeout=30
        )
        assert done.returncode in (0, 1, 2), f"the hook died: {done}"
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace")
        )

    def letters(self) -> dict[str, dict[str, Any]]:
        return {p.name: json.loads(p.read_text()) for p in self.mailbox.iterdir()}


@pytest.fixture
def runtime(hook: Path, tmp_path: Path) -> Runtime:
    (tmp_path / "mailbox").mkdir()
    return Runtime(hook, tmp_path)


@pytest.mark.parametrize("annotations", [CONTAINERD, CRIO], ids=["containerd", "cri-o"])
def test_attests_the_pod_before_its_first_instruction(
    runtime: Runtime, annotations: dict[str, str]
) -> None:
    done = runtime.run(annotations=annotations)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert runtime.letters() == {
        "0c5a2c5e-uid_main.json": {
            "version": 1,
            "podUid": "0c5a2c5e-uid",
            "namespace": "shop",
            "pod": "app-0",
            "container": "main",
            "id": "c0ffee",
            "gpus": [GPU],
            "refused": None,
        }
    }


def test_a_restart_overwrites_its_own_letter(runtime: Runtime) -> None:
    for _ in range(3):
        runtime.run()
    assert len(runtime.letters()) == 1


def test_the_annotations_of_the_configuration_do_too(runtime: Runtime) -> None:
    runtime.run(config=runtime.config(annotations=CONTAINERD), annotations={})
    assert "0c5a2c5e-uid_main.json" in runtime.letters()


DEVICE = ("--device", "/dev/nvidia1")


@pytest.mark.parametrize(
    ("options", "env", "devices", "reason"),
    [
        ((), (), (), "has no NVIDIA_VISIBLE_DEVICES"),
        ((), (f"NVIDIA_VISIBLE_DEVICES={GPU}",), (), None),
        ((), ("NVIDIA_VISIBLE_DEVICES=all",), (), "is missing"),
        ((), ("NVIDIA_VISIBLE_DEVICES=void",), (), "is missing"),
        ((), (f"NVIDIA_VISIBLE_DEVICES={OTHER}",), (), "is missing"),
        ((), (f"NVIDIA_VISIBLE_DEVICES={GPU},{OTHER}",), (), "another GPU"),
        # The last one counts.
        ((), ("NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_VISIBLE_DEVICES={GPU}"), (), None),
        ((), (f"NVIDIA_VISIBLE_DEVICES={GPU}", "NVIDIA_VISIBLE_DEVICES=all"), (), "is missing"),
        ((), (f"NVIDIA_VISIBLE_DEVICES={GPU}" + "x" * 9000,), (), "is missing"),
        (DEVICE, ("NVIDIA_VISIBLE_DEVICES=void",), ("/dev/nvidiactl", "/dev/nvidia1"), None),
        (DEVICE, (), ("/dev/nvidia1",), None),
        (DEVICE, (f"NVIDIA_VISIBLE_DEVICES={GPU}",), ("/dev/nvidia1",), None),
        (DEVICE, ("NVIDIA_VISIBLE_DEVICES=all",), ("/dev/nvidia1",), "is missing"),
        (DEVICE, (), (), "device file of its GPU"),
        (DEVICE, (), ("/dev/nvidia0",), "another GPU, /dev/nvidia0"),
        (DEVICE, (), ("/dev/nvidia1", "/dev/nvidia0"), "another GPU, /dev/nvidia0"),
    ],
)
def test_refuses_a_container_without_its_gpu_or_with_another(
    runtime: Runtime,
    options: tuple[str, ...],
    env: tuple[str, ...],
    devices: tuple[str, ...],
    reason: str | None,
) -> None:
    done = runtime.run(
        "attest",
        "--mailbox",
        str(runtime.mailbox),
        "--gpu",
        GPU,
        *options,
        config=runtime.config(env, devices),
    )
    (letter,) = runtime.letters().values()
    if reason is None:
        assert done.returncode == 0
        assert letter["refused"] is None
    else:
        assert done.returncode == 1
        assert reason in done.stderr
        assert reason in letter["refused"]


def test_several_gpus_in_any_order(runtime: Runtime) -> None:
    config = runtime.config((f"NVIDIA_VISIBLE_DEVICES={OTHER},{GPU}",))
    words = ("attest", "--mailbox", str(runtime.mailbox), "--gpu", GPU, "--gpu", OTHER)
    assert runtime.run(*words, config=config).returncode == 0


@pytest.mark.parametrize("config", [b"", b"{", b"\x00" * 64, b"[" * 100_000, b"{}", b"[]", b"1"])
def test_an_unreadable_configuration_shows_no_gpu(runtime: Runtime, config: bytes) -> None:
    done = runtime.run(config=config)
    assert done.returncode == 1
    assert "refused" in done.stderr


def test_a_huge_configuration_is_not_read_into_memory(runtime: Runtime) -> None:
    done = runtime.run(config=b'{"a":"' + b"x" * (17 << 20) + b'"}')
    assert done.returncode == 1
    assert "File too large" in done.stderr


def test_without_a_readable_state_the_bundle_is_where_it_runs(runtime: Runtime) -> None:
    done = runtime.run(state=b"not JSON")
    assert done.returncode == 0
    assert "unknown_.json" in runtime.letters()


def test_a_mailbox_that_is_gone_is_made_again(runtime: Runtime) -> None:
    runtime.mailbox.rmdir()
    assert runtime.run().returncode == 0
    assert len(runtime.letters()) == 1


def test_a_mailbox_that_cannot_be_written_refuses_nobody(runtime: Runtime) -> None:
    runtime.mailbox.rmdir()
    runtime.mailbox.write_text("a file")
    done = runtime.run()
    assert done.returncode == 0
    assert "cannot write" in done.stderr


def test_hostile_names_stay_inside_the_mailbox(runtime: Runtime) -> None:
    hostile = dict.fromkeys(CONTAINERD, "../../etc/" + "x" * 300 + '"\n\u2028')
    assert runtime.run(annotations=hostile).returncode == 0
    ((name, letter),) = runtime.letters().items()
    assert name.startswith("_._.._etc_")
    assert letter["podUid"] == hostile["io.kubernetes.cri.sandbox-uid"]
    assert sorted(p.name for p in runtime.folder.iterdir()) == ["bundle", "mailbox"]


@pytest.mark.parametrize(
    "words",
    [(), ("attest",), ("attest", "--gpu", GPU), ("frobnicate", "--gpu", GPU), ("attest", "--gpu")],
)
def test_wrong_arguments_are_a_usage_error(runtime: Runtime, words: tuple[str, ...]) -> None:
    if words:
        assert runtime.run(*words).returncode == 2


LIBRARY = "/usr/lib/gpushare/interposer.so"


@pytest.mark.parametrize(
    ("preload", "library", "reason"),
    [
        (f"{LIBRARY}\n", True, None),
        (f"{LIBRARY}:/other.so\n", True, None),
        (f"/other.so {LIBRARY}\n", True, "does not begin with"),
        (f"{LIBRARY}x\n", True, "does not begin with"),
        ("", True, "does not begin with"),
        (None, True, "cannot be read"),
        (f"{LIBRARY}\n", False, "is not there"),
    ],
)
def test_refuses_a_container_that_would_not_be_held_to_its_memory(
    runtime: Runtime, preload: str | None, library: bool, reason: str | None
) -> None:
    rootfs = runtime.folder / "bundle" / "rootfs"
    (rootfs / "etc").mkdir(parents=True)
    (rootfs / "usr/lib/gpushare").mkdir(parents=True)
    if preload is not None:
        (rootfs / "etc/ld.so.preload").write_text(preload)
    if library:
        (rootfs / LIBRARY[1:]).write_text("ELF")
    done = runtime.run("check-preload", "--library", LIBRARY)
    assert done.returncode == (0 if reason is None else 1)
    if reason:
        assert reason in done.stderr


def test_links_in_the_image_do_not_lead_out_of_it(runtime: Runtime) -> None:
    outside = runtime.folder / "outside"
    (outside / "etc").mkdir(parents=True)
    (outside / "etc/ld.so.preload").write_text(f"{LIBRARY}\n")
    rootfs = runtime.folder / "bundle" / "rootfs"
    rootfs.mkdir(parents=True)
    (rootfs / "etc").symlink_to(outside / "etc")
    done = runtime.run("check-preload", "--library", LIBRARY)
    assert done.returncode == 1
    assert "cannot be read" in done.stderr


def test_the_hook_is_static(hook: Path) -> None:
    headers = subprocess.run(["readelf", "-lW", hook], capture_output=True, text=True, check=True)
    assert "INTERP" not in headers.stdout
    assert hook.stat().st_size < 200_000


@pytest.mark.parametrize("rounds", [5_000, pytest.param(400_000, marks=pytest.mark.native_slow)])
def test_broken_json_never_breaks_the_reader(
    sanitized: Path, runtime: Runtime, rounds: int
) -> None:
    seed = json.dumps(
        runtime.config(devices=("/dev/nvidia0",), text="\u00e9\U0001f600\n"), ensure_ascii=True
    )
    done = subprocess.run(
        [sanitized / "fuzz_json", "1", str(rounds)], input=seed, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    parsed = int(done.stdout.split()[0])
    assert 0 < parsed < rounds
