"""The cluster's binaries: real releases, built from pinned Go modules, once.

Each module folder beside this file holds a go.mod and a go.sum that pin a release and everything
it needs. A binary lands in `<cache>/bin/<name>-<version>-<hash of the inputs>/<name>`: it is built
into a temporary folder and renamed into place, so whoever finds one finds a whole one. Nothing is
built that the caller does not ask for: a control plane needs neither kubelet nor containerd.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from gpushare_testcluster.cache import cache_dir, locked
from gpushare_testcluster.errors import BuildFailed
from gpushare_testcluster.say import Say
from gpushare_testcluster.toolchain import go_toolchain


@dataclass(frozen=True)
class Module:
    """One pinned module folder.

    folder: its name under `modules/`; main: the module whose version the binaries carry;
    packages: binary name → Go package; stamp: linker variable that holds the version;
    cost: what building from nothing takes on two cores, for the announcement.
    """

    folder: str
    main: str
    packages: dict[str, str]
    cost: str
    stamp: str = ""
    tags: str = ""
    cgo: bool = False
    """Has a part in C; linked statically all the same."""

    def file(self, name: str) -> bytes:
        """The bytes of go.mod or go.sum."""
        root = resources.files("gpushare_testcluster") / "modules" / self.folder
        return (root / name).read_bytes()

    @property
    def version(self) -> str:
        """The release pinned in go.mod, such as `v1.36.3`."""
        match = re.search(
            rf"^\s*(?:require\s+)?{re.escape(self.main)}\s+(v\S+)",
            self.file("go.mod").decode(),
            re.MULTILINE,
        )
        if not match:
            raise BuildFailed(f"modules/{self.folder}/go.mod does not require {self.main}")
        return match[1]

    @property
    def flags(self) -> list[str]:
        """Arguments of `go build` that shape the result."""
        stamp = f" -X {self.stamp}={self.version}" if self.stamp else ""
        tags = ["-tags", self.tags] if self.tags else []
        static = " -extldflags -static" if self.cgo else ""
        return ["-trimpath", *tags, "-ldflags", f"-s -w{static}{stamp}"]


KUBERNETES = Module(
    folder="kubernetes",
    main="k8s.io/kubernetes",
    packages={
        name: f"k8s.io/kubernetes/cmd/{name}"
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
    },
    stamp="k8s.io/component-base/version.gitVersion",
    cost="about 7 minutes",
)
ETCD = Module(
    folder="etcd",
    main="go.etcd.io/etcd/server/v3",
    packages={"etcd": "go.etcd.io/etcd/server/v3"},
    cost="about half a minute",
)
CONTAINERD = Module(
    folder="containerd",
    main="github.com/containerd/containerd/v2",
    packages={
        name: f"github.com/containerd/containerd/v2/cmd/{name}"
        for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    },
    stamp="github.com/containerd/containerd/v2/version.Version",
    tags="no_btrfs,osusergo,netgo",
    cost="about 1 minute",
)
RUNC = Module(
    folder="runc",
    main="github.com/opencontainers/runc",
    packages={"runc": "github.com/opencontainers/runc"},
    stamp="main.version",
    tags="seccomp,osusergo,netgo",
    cgo=True,
    cost="about 1 minute",
)
MODULES = (ETCD, KUBERNETES, CONTAINERD, RUNC)

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
NODE = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "runc")


def path_of(name: str) -> Path:
    """Where the binary is, or will be once built."""
    module = _module_of(name)
    digest = hashlib.sha256()
    for part in (
        module.file("go.mod"),
        module.file("go.sum"),
        module.packages[name].encode(),
        " ".join(module.flags).encode(),
        f"{platform.system()}/{platform.machine()}".encode(),
    ):
        digest.update(hashlib.sha256(part).digest())
    folder = f"{name}-{module.version}-{digest.hexdigest()[:12]}"
    return cache_dir() / "bin" / folder / name


def missing(names: Iterable[str]) -> list[str]:
    """Those of `names` that are not in the cache yet."""
    return [name for name in names if not path_of(name).exists()]


def cost_of(names: Iterable[str]) -> str:
    """What building `names` costs, in words; empty when nothing is missing."""
    lacking = missing(names)
    parts = [
        f"{', '.join(sorted(wanted))} {module.version} ({module.cost})"
        for module in MODULES
        if (wanted := [name for name in lacking if name in module.packages])
    ]
    return "; ".join(parts)


def ensure(
    names: Iterable[str], say: Say, environ: dict[str, str] | None = None
) -> dict[str, Path]:
    """Builds what is missing; returns name → path.

    environ: added to the environment of the processes started (so that `down` finds them).
    Raises BuildFailed with the compiler's last lines.
    """
    names = list(names)
    if cost := cost_of(names):
        say.note(
            f"Building once: {cost}, on two cores from an empty Go cache; the cache then holds up "
            f"to 6 GB. The binaries are kept in {cache_dir() / 'bin'}."
        )
        for module in MODULES:
            if any(name in module.packages for name in missing(names)):
                with locked(module.folder, say):
                    wanted = [name for name in missing(names) if name in module.packages]
                    if wanted:
                        _build(module, wanted, say, environ or {})
    return {name: path_of(name) for name in names}


def _module_of(name: str) -> Module:
    for module in MODULES:
        if name in module.packages:
            return module
    raise BuildFailed(f"no module builds {name!r}")


def _build(module: Module, names: list[str], say: Say, environ: dict[str, str]) -> None:
    """Builds `names` in one go (they share packages) and moves each into its place."""
    go = go_toolchain(say)
    bin_dir = cache_dir() / "bin"
    bin_dir.mkdir(parents=True, exist_ok=True)
    prefix = f".building-{module.folder}-"
    for stale in bin_dir.glob(f"{prefix}*"):  # we hold the lock: whoever made these is gone
        shutil.rmtree(stale, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=bin_dir))
    try:
        for file in ("go.mod", "go.sum"):
            (work / file).write_bytes(module.file(file))
        for name in names:
            (work / name).mkdir()
        title = f"building {', '.join(sorted(names))} {module.version}"
        # One command per binary after a common first: -o with a folder names a binary after its
        # package's last element, which for etcd is "v3".
        compiled = _Counter()
        with say.step(title, compiled.text):
            for name in names:
                output = work / name / name
                command = [
                    str(go),
                    *("build", "-v", *module.flags, "-o", str(output), module.packages[name]),
                ]
                _run(command, work, compiled, {"CGO_ENABLED": str(int(module.cgo)), **environ})
                output.chmod(0o755)
        for name in names:
            target = path_of(name).parent
            if not target.exists():
                (work / name).rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


class _Counter:
    """Counts what `go build -v` prints: packages compiled and modules downloaded."""

    def __init__(self) -> None:
        self.packages = 0
        self.downloads = 0

    def see(self, line: str) -> None:
        if line.startswith("go: downloading"):
            self.downloads += 1
        elif line and not line.startswith(("go:", "#", " ", "\t")):
            self.packages += 1

    def text(self) -> str:
        return f"{self.downloads} modules downloaded, {self.packages} packages compiled"


def _run(command: list[str], work: Path, counter: _Counter, environ: dict[str, str]) -> None:
    env = {
        **os.environ,
        **environ,
        # With Go 1.27's encoding/json the API server's /openapi/v2 comes out malformed.
        "GOEXPERIMENT": "nojsonv2",
        "GOWORK": "off",
    }
    env.pop("GOROOT", None)  # of another Go than the one called
    tail: deque[str] = deque(maxlen=40)
    with subprocess.Popen(
        command, cwd=work, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                counter.see(line)
                tail.append(line)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise BuildFailed(
            f"{' '.join(command)}\nfailed with exit code {process.returncode}:\n{''.join(tail)}"
        )
