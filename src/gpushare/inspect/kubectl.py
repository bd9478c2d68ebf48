"""A live cluster's objects, through `kubectl get --raw`.

kubectl knows every way to log in; its output is the API server's own JSON, decoded like a dump. The
nodes and the pods are read at the same time, one call each, without paging: every page would start
kubectl once more. What decodes them is imported in the meantime. Pods that are on no node hold
nothing and are left out by the API server.

`$KUBECTL` names the program, otherwise it is found in the PATH. What kubectl says while it works,
such as the prompt of an interactive login, is passed on; when it fails, what it said is explained.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Final

from gpushare.inspect.errors import ClusterError, InspectError

if TYPE_CHECKING:
    from gpushare.inspect.decode import Objects

NODES: Final = "/api/v1/nodes"
PODS: Final = "/api/v1/pods?fieldSelector=spec.nodeName%21%3D"

PATIENCE_S = 1.5
"""What kubectl says within this time is kept for a message; later, somebody may be waiting for it,
and it is passed on at once."""

_NO_KUBECTL = (
    "{program} cannot be run: {reason}. The cluster is read through kubectl: install it, or name "
    "it in the environment variable KUBECTL; or read a dump instead, with -f"
)
_FORBIDDEN = (
    "not allowed to list {resource} in all namespaces ({said}). It takes `list` on nodes and pods, "
    "as in the ClusterRole gpushare-viewer (deploy/viewer.yaml). Somebody who may can bind it:\n"
    "  kubectl create clusterrolebinding gpushare-viewers --clusterrole gpushare-viewer --user NAME"
)
_HINTS: Final = (
    (
        ("Unauthorized", "must be logged in", "provide credentials"),
        "; log in again, as for kubectl get nodes",
    ),
    (
        ("timeout", "timed out", "deadline exceeded", "Client.Timeout"),
        "; the API server did not answer in time: is it reachable (kubectl cluster-info)? "
        "--request-timeout says how long to wait",
    ),
    (
        ("refused", "no such host", "no route", "Unable to connect", "unreachable"),
        "; is this the cluster you mean (kubectl config current-context), and is it running?",
    ),
)


class Reading:
    """The cluster being read: kubectl works from the moment this exists.

    options   kubectl's own, such as `--context=test`

    Raises InspectError where there is no kubectl.
    """

    def __init__(self, options: Sequence[str] = ()) -> None:
        program = os.environ.get("KUBECTL") or "kubectl"
        self._nodes = _Call(program, options, "nodes", NODES)
        try:
            self._pods = _Call(program, options, "pods", PODS)
        except BaseException:
            self._nodes.end()
            raise

    def objects(self) -> "Objects":
        """The cluster's nodes, and its pods that are on one; waits for them.

        Raises ClusterError where the cluster does not answer or does not allow it.
        """
        from gpushare.inspect.decode import decode_nodes, decode_pods  # while kubectl works

        try:
            objects = decode_nodes("kubectl's answer (nodes)", self._nodes.answer())
            objects.add(decode_pods("kubectl's answer (pods)", self._pods.answer()))
            return objects
        finally:
            self.end()

    def end(self) -> None:
        """Stops it, if it is not done."""
        self._nodes.end()
        self._pods.end()


class _Call:
    """One `kubectl get --raw`, running."""

    def __init__(self, program: str, options: Sequence[str], resource: str, path: str) -> None:
        self.resource = resource
        self._said: list[bytes] = []
        self._answer = b""
        self._started = time.monotonic()
        command = [program, *options, "get", "--raw", path]
        try:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise InspectError(
                _NO_KUBECTL.format(program=program, reason=error.strerror or error)
            ) from None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._listen, args=(self._process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def answer(self) -> bytes:
        """What the API server answered. Raises ClusterError."""
        for reader in self._readers:
            reader.join()
        if self._process.wait() == 0 and self._answer:
            return self._answer
        raise ClusterError(_explained(self.resource, b"".join(self._said).decode(errors="replace")))

    def end(self) -> None:
        """Stops it if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            self._answer = stream.read()

    def _listen(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                self._said.append(line)
                if time.monotonic() - self._started > PATIENCE_S:
                    sys.stderr.write(line.decode(errors="replace"))
                    sys.stderr.flush()


def _explained(resource: str, said: str) -> str:
    said = " ".join(line.strip() for line in said.splitlines() if line.strip())
    said = said.removeprefix("Error from server ").removeprefix("error: ")
    if "(Forbidden)" in said or " forbidden: " in said:
        return _FORBIDDEN.format(resource=resource, said=said.removeprefix("(Forbidden): "))
    hint = next((hint for marks, hint in _HINTS if any(mark in said for mark in marks)), "")
    return f"kubectl could not list {resource}: {said or 'it said nothing'}{hint}"
