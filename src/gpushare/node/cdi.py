"""The node's CDI specifications: which device names a GPU, and writing a specification of our own.

A specification is a .json or .yaml file in one of a few directories. It lists the devices of one
kind (`nvidia.com/gpu`) and how each edits a container; runtimes take `<kind>=<device>`. How they
resolve names is followed here, so that no name is answered which they would refuse: a later
directory wins, a name that two files of one directory define is nobody's, and a file with one wrong
device counts for nothing. What the edits of others say is left to the runtime.

Source: SPEC.md and pkg/cdi of https://github.com/cncf-tags/container-device-interface.
"""

import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

DIRECTORIES: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Where runtimes look unless they are told otherwise; the second one wins."""

NVIDIA_KIND: Final = "nvidia.com/gpu"
ALLOCATION_KIND: Final = "gpushare.dev/allocation"
"""Of our own devices, one for each container's allocation."""

VERSION: Final = "0.6.0"
"""Of what we write; containerd 1.7 knows it."""

MAX_SPEC_BYTES: Final = 4 << 20

_OWN_VENDOR: Final = "gpushare.dev/"
_SUFFIXES: Final = (".json", ".yaml")
_MAX_NAME_LENGTH: Final = 200
"""Of a file we write: the temporary one beside it needs some of the 255."""

_KIND: Final = re.compile(
    r"[A-Za-z](?:[0-9A-Za-z._-]*[0-9A-Za-z])?/[A-Za-z](?:[0-9A-Za-z._-]*[0-9A-Za-z])?", re.ASCII
)
_DEVICE: Final = re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z._:-]*[0-9A-Za-z])?", re.ASCII)
_SEMANTIC_VERSION: Final = re.compile(r"v?[0-9]+\.[0-9]+\.[0-9]+", re.ASCII)
_SUFFIX: Final = re.compile(r"[0-9A-Za-z._:-]+", re.ASCII)
_ENV: Final = re.compile(r"[^=\0]+=[^\0]*", re.DOTALL)
_PERMISSIONS: Final = re.compile(r"[rwm]*")
_HOOK_NAMES: Final = frozenset(
    {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}
)


class CdiError(ValueError):
    """What is no valid specification; the text says what is wrong with it."""


class DeviceNode(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A device file to be made in the container; what is left out is taken from the host's."""

    path: str
    host_path: str | None = None
    type: str | None = None
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str | None = None
    """Of the cgroup, out of `rwm`."""
    uid: int | None = None
    gid: int | None = None


class Mount(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A mount; the runtime adds no options, so a file of the host needs `bind` among them."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str | None = None


class Hook(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A program that the runtime runs on the host at one moment of the container's life."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    """The whole argv: the first one is the program's name."""
    env: tuple[str, ...] = ()
    timeout: int | None = None
    """Seconds."""


class ContainerEdits(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What a device changes in a container."""

    env: tuple[str, ...] = ()
    """`NAME=value` each; they win over the pod's own."""
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()


class Device(msgspec.Struct, frozen=True, rename="camel"):
    """One device of a specification."""

    name: str
    container_edits: ContainerEdits


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    """As it is written."""

    cdi_version: str
    kind: str
    devices: Sequence[Device]


class _AnyDevice(msgspec.Struct, rename="camel"):
    """As it is read."""

    name: str
    container_edits: dict[str, Any]


class _AnySpec(msgspec.Struct, rename="camel"):
    """As it is read; what later versions add is let pass."""

    cdi_version: str
    kind: str
    devices: list[_AnyDevice]


@dataclass(frozen=True, slots=True)
class SpecProblem:
    """A file or directory that was left out, or a device that two files define."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class CdiDevices:
    """The devices that a runtime with these directories knows."""

    files: Mapping[str, str]
    """Fully qualified name -> the file that defines it."""
    problems: tuple[SpecProblem, ...] = ()

    def device_for(self, uuid: str) -> str | None:
        """The fully qualified name of the device that is this GPU, of whatever kind.

        Its name is the UUID, or has it as the last part (`gpu:<uuid>`; another part after the UUID
        would name a slice of the GPU). Names that are the UUID come first, then the kind
        nvidia.com/gpu, then the alphabet. Devices of our own are left out: they add to a GPU.
        """

        def preference(qualified: str) -> tuple[bool, bool, str]:
            kind, _, name = qualified.partition("=")
            return name != uuid, kind != NVIDIA_KIND, qualified

        return min((q for q in self.files if _is_gpu(q, uuid)), key=preference, default=None)


def _is_gpu(qualified: str, uuid: str) -> bool:
    name = qualified.partition("=")[2]
    return not qualified.startswith(_OWN_VENDOR) and re.split("[._:]", name)[-1] == uuid


def parse_spec(data: bytes) -> tuple[str, ...]:
    """The fully qualified names of the devices in a specification, JSON or YAML.

    Raises CdiError for what a runtime would not load.
    """
    spec = _decoded(data)
    if not _SEMANTIC_VERSION.fullmatch(spec.cdi_version):
        raise CdiError(f"cdiVersion is {spec.cdi_version!r}, not a version like {VERSION}")
    _check_names(spec.kind, [device.name for device in spec.devices])
    for device in spec.devices:
        if not device.container_edits:
            raise CdiError(f"device {device.name} has no containerEdits")
    return tuple(f"{spec.kind}={device.name}" for device in spec.devices)


def _decoded(data: bytes) -> _AnySpec:
    try:
        try:
            content = msgspec.json.decode(data)
        except msgspec.DecodeError:  # most YAML, and JSON with a fault that YAML's error will name
            content = yaml.load(data, Loader=yaml.CSafeLoader)
        return msgspec.convert(content, _AnySpec)
    except RecursionError:
        raise CdiError("it is nested too deeply") from None
    except msgspec.ValidationError as error:
        raise CdiError(str(error)) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise CdiError(f"it is neither JSON nor YAML: {' '.join(str(error).split())}") from None


def read_specs(directories: Iterable[Path] = DIRECTORIES) -> CdiDevices:
    """Reads every specification in the directories; each wins over the ones before it.

    A directory that does not exist is empty. Whatever cannot be used stands in `problems`.
    """
    files: dict[str, str] = {}
    conflicts: set[str] = set()
    problems: list[SpecProblem] = []
    for directory in directories:
        here: dict[str, str] = {}
        for path, names in _specs_in(directory, problems):
            for name in names:
                other = here.setdefault(name, str(path))
                if other != str(path):
                    conflicts.add(name)
                    problems.append(SpecProblem(str(path), f"{name} is in {other} as well"))
        files |= here
    return CdiDevices(
        {name: file for name, file in files.items() if name not in conflicts}, tuple(problems)
    )


def _specs_in(
    directory: Path, problems: list[SpecProblem]
) -> Iterator[tuple[Path, tuple[str, ...]]]:
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix in _SUFFIXES)
    except FileNotFoundError:
        return
    except OSError as error:
        problems.append(SpecProblem(str(directory), f"it cannot be listed: {error.strerror}"))
        return
    for path in paths:
        try:
            if path.is_dir():
                continue
            names = parse_spec(_read(path))
        except OSError as error:
            problems.append(SpecProblem(str(path), f"it cannot be read: {error.strerror}"))
        except CdiError as error:
            problems.append(SpecProblem(str(path), str(error)))
        else:
            yield path, names


def _read(path: Path) -> bytes:
    """Raises OSError, CdiError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO would block
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise CdiError("it is not a regular file")
        data = file.read(MAX_SPEC_BYTES + 1)
    if len(data) > MAX_SPEC_BYTES:
        raise CdiError(f"it is larger than {MAX_SPEC_BYTES >> 20} MiB")
    return data


def encode_spec(kind: str, devices: Sequence[Device]) -> bytes:
    """A specification as a file holds it. Raises CdiError for what a runtime would not load."""
    _check_names(kind, [device.name for device in devices])
    for device in devices:
        fault = _fault_of(device.container_edits)
        if fault is not None:
            raise CdiError(f"device {device.name}: {fault}")
    return msgspec.json.format(msgspec.json.encode(_Spec(VERSION, kind, devices)), indent=1) + b"\n"


def spec_name(kind: str, suffix: str) -> str:
    """The name of the file with one kind's devices: `<vendor>-<class>_<suffix>.json`.

    As CDI recommends for specifications that come and go (GenerateTransientSpecName in pkg/cdi).
    Raises CdiError.
    """
    if not _KIND.fullmatch(kind):
        raise CdiError(f"kind {kind!r} is not <vendor>/<class>")
    name = f"{kind.replace('/', '-')}_{suffix}.json"
    if not _SUFFIX.fullmatch(suffix) or len(name) > _MAX_NAME_LENGTH:
        raise CdiError(f"{suffix!r} cannot be part of a file's name")
    return name


def write_spec(directory: Path, kind: str, devices: Sequence[Device], suffix: str) -> Path:
    """Writes a specification, over one of the same kind and suffix, and returns its file.

    A reader finds the old one or the new one, whole. Raises CdiError, OSError.
    """
    path = directory / spec_name(kind, suffix)
    data = encode_spec(kind, devices)
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    # Runtimes look at .json and .yaml only, so this one is not seen.
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=directory)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(descriptor, 0o644)
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return path


def remove_spec(directory: Path, kind: str, suffix: str) -> bool:
    """Removes what `write_spec` wrote; False where there was nothing. Raises CdiError, OSError."""
    try:
        (directory / spec_name(kind, suffix)).unlink()
    except FileNotFoundError:
        return False
    return True


def written_specs(directory: Path, kind: str) -> list[str]:
    """The suffixes of the specifications of this kind that stand there. Raises OSError."""
    start = f"{kind.replace('/', '-')}_"
    try:
        names = sorted(path.name for path in directory.iterdir())
    except FileNotFoundError:
        return []
    return [
        name[len(start) : -len(".json")]
        for name in names
        if name.startswith(start) and name.endswith(".json")
    ]


def _check_names(kind: str, names: Collection[str]) -> None:
    if not _KIND.fullmatch(kind):
        raise CdiError(f"kind {kind!r} is not <vendor>/<class>")
    if not names:
        raise CdiError("it has no devices")
    seen: set[str] = set()
    for name in names:
        if not _DEVICE.fullmatch(name):
            raise CdiError(
                f"device name {name!r} is not letters, digits and `._:-` between two of the first"
            )
        if name in seen:
            raise CdiError(f"device {name} is in it twice")
        seen.add(name)


def _fault_of(edits: ContainerEdits) -> str | None:
    """Why a runtime would refuse these edits."""
    if edits == ContainerEdits():
        return "it has no containerEdits"
    for variable in (*edits.env, *(variable for hook in edits.hooks for variable in hook.env)):
        if not _ENV.fullmatch(variable):
            return f"env {variable!r} is not NAME=value"
    for node in edits.device_nodes:
        if not node.path.startswith("/"):
            return f"device node {node.path!r} is not an absolute path"
        if node.permissions is not None and not _PERMISSIONS.fullmatch(node.permissions):
            return f"device node {node.path}: permissions {node.permissions!r} are not out of rwm"
    for mount in edits.mounts:
        for path in (mount.host_path, mount.container_path):
            if not path.startswith("/"):
                return f"mount: {path!r} is not an absolute path"
    for hook in edits.hooks:
        if hook.hook_name not in _HOOK_NAMES:
            return f"hook {hook.hook_name!r} is not one of {', '.join(sorted(_HOOK_NAMES))}"
        if not hook.path.startswith("/"):
            return f"hook {hook.hook_name}: {hook.path!r} is not an absolute path"
        if hook.timeout is not None and hook.timeout <= 0:
            return f"hook {hook.hook_name}: a time-out of {hook.timeout} s"
    return None
