"""Looks at running containers: is each really held to its GPU memory? (isolation.protection)

A container that was found unprotected in two looks in a row is told of: an annotation of its pod,
an Event, a line in the log. It counts as unprotected until it was started again and found in order,
also in two looks: what it has done by then is not undone by stopping. Of a container of which
nothing runs nothing new is known.

What should stand in a pod's annotation is compared with what stands there, so a write that failed
is done again after the next look.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from gpushare.contract import names
from gpushare.deviceplugin.announce import Announcer
from gpushare.deviceplugin.state import NodeState
from gpushare.isolation.limits import GpuLimit
from gpushare.isolation.protection import Ended, Given, NotAllowed, why_unprotected
from gpushare.kube.connection import Connection
from gpushare.kube.errors import ApiError, Conflict, KubeError, NotFound
from gpushare.kube.objects import Pod
from gpushare.kube.patches import annotate_pod
from gpushare.node.mailbox import Mailboxes, allocation_id
from gpushare.node.processes import PROC, container_id, processes_of

log = logging.getLogger(__name__)

POLL_S: Final = 5.0
TIMEOUT_S: Final = 10.0

_BLIND: Final = (
    "the processes of other containers are not seen here; run the device plugin with hostPID"
)

Key = tuple[str, str]
"""UID of a pod, name of a container in it."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """A container that has ids of ours and was started."""

    key: Key
    id: str
    allocation: str


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What a look at a container said."""

    id: str
    why: str | None
    """Why it is unprotected; None: it is protected."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What a look at all of them said."""

    verdicts: Mapping[Key, _Verdict]
    """Of the containers that are held to limits and of which something runs."""
    trouble: str | None = None
    """Why some, or all, could not be looked at."""


@dataclass
class Guard:
    """Looks after the containers that `state` knows. `run` must be running."""

    state: NodeState
    mailboxes: Mailboxes
    connection: Connection
    announcer: Announcer
    proc: Path = PROC
    unprotected: dict[Key, str] = field(default_factory=dict)
    """Container -> why it is not held to its limits."""
    trouble: str | None = None
    """Why containers, or some of them, cannot be looked at here."""
    _told: set[str] = field(default_factory=set)
    """Troubles that were logged."""
    _last: dict[Key, _Verdict] = field(default_factory=dict)
    _found: dict[Key, str] = field(default_factory=dict)
    """Unprotected container -> its id then."""
    _sound: set[Key] = field(default_factory=set)
    """Containers in order, in their last two looks."""
    _failing: bool = False

    async def run(self) -> NoReturn:
        """Look, now and then, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(POLL_S)

    async def look(self) -> None:
        """Look once at every container, and tell of what is new."""
        watched = list(self._watched())
        self._forget({one.key for one in watched})
        if not watched:
            return
        seen = await asyncio.to_thread(_look, self.proc, self.mailboxes, watched)
        self.trouble = seen.trouble
        if self.trouble is not None and self.trouble not in self._told:
            self._told.add(self.trouble)
            log.warning(
                "whether containers are really held to their GPU memory cannot be checked: %s",
                self.trouble,
            )
        for key, verdict in seen.verdicts.items():
            if key[0] in self.state.pods:
                self._judge(key, verdict)
        await self._publish({key[0] for key in seen.verdicts.keys() | self.unprotected.keys()})

    def _watched(self) -> Iterator[_Watched]:
        books = self.state.books
        assert books is not None
        for uid, pod in books.pods.items():
            known = self.state.pods.get(uid)
            ids = container_ids(known) if known is not None and pod.live else {}
            facts = pod.facts
            for piece in pod.pieces:
                if not ids or piece.grant is None or not piece.attested:
                    continue
                for position, handed in piece.grant.handed.items():
                    ask = piece.calls[position].ask
                    name = (facts.init_names if ask.init else facts.app_names)[ask.index]
                    if name in ids:
                        yield _Watched((uid, name), ids[name], allocation_id(handed))

    def _judge(self, key: Key, verdict: _Verdict) -> None:
        before = self._last.get(key)
        self._last[key] = verdict
        self._sound.discard(key)
        if before is None or before.id != verdict.id:
            return
        if verdict.why is None and before.why is None:
            self._sound.add(key)
            if self._found.get(key, verdict.id) != verdict.id:
                del self._found[key], self.unprotected[key]
                log.info("container %s of pod %s is held to its GPU memory again", key[1], key[0])
        elif verdict.why and before.why and self._found.get(key) != verdict.id:
            self._found[key], self.unprotected[key] = verdict.id, verdict.why
            self.announcer.unprotected(self.state.pods[key[0]], key[1], verdict.why)

    def _forget(self, there: set[Key]) -> None:
        """What was known of containers that are not there any more."""
        for kept in (self.unprotected, self._last, self._found):
            for key in kept.keys() - there:
                del kept[key]
        self._sound &= there

    async def _publish(self, uids: set[str]) -> None:
        """Writes what is not as it should be, of pods of which anything is known."""
        failed: KubeError | None = None
        for uid in sorted(uids):
            pod = self.state.pods.get(uid)
            if pod is None:
                continue
            try:
                await self._annotate(pod)
            except ApiError as error:
                failed = error  # of this pod alone, maybe
            except KubeError as error:
                failed = error
                break
        if failed is not None and not self._failing:
            log.warning("cannot write %s: %s", names.ANNOTATION_UNPROTECTED, failed)
        self._failing = failed is not None

    async def _annotate(self, pod: Pod) -> None:
        meta = pod.metadata
        texts = [
            f"{name}: {why}" for (uid, name), why in self.unprotected.items() if uid == meta.uid
        ]
        text = "; ".join(sorted(texts)) or None
        standing = (meta.annotations or {}).get(names.ANNOTATION_UNPROTECTED)
        # An earlier plugin's is believed until the pod has been seen in order.
        if text == standing or (text is None and all(key[0] != meta.uid for key in self._sound)):
            return
        try:
            patched = await annotate_pod(
                self.connection,
                meta.namespace,
                meta.name,
                {names.ANNOTATION_UNPROTECTED: text},
                uid=meta.uid,
                timeout_s=TIMEOUT_S,
            )
        except (NotFound, Conflict):
            return  # gone meanwhile, or another bears its name; the watch will tell
        self.state.pod_changed(patched)


def container_ids(pod: Pod) -> dict[str, str]:
    """Container's name -> id of the newest container of that name."""
    status = pod.status
    if status is None:
        return {}
    statuses = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
    return {one.name: id_ for one in statuses if (id_ := container_id(one.container_id))}


def _look(proc: Path, mailboxes: Mailboxes, watched: Sequence[_Watched]) -> _Look:
    """Looks at the processes of containers; runs in a thread."""
    held: list[tuple[_Watched, Given]] = []
    for one in watched:
        record = mailboxes.record(one.allocation)
        if record is not None and record.limits:
            limits = tuple(GpuLimit(*limit) for limit in record.limits)
            held.append((one, Given(limits, Path(record.library) if record.library else None)))
    if not held:
        return _Look({})
    try:
        seen = processes_of({one.id for one, _ in held}, proc)
    except OSError as error:
        return _Look({}, str(error))
    verdicts: dict[Key, _Verdict] = {}
    trouble = None if seen.others else _BLIND
    for one, given in held:
        if one.id in seen.pids:
            try:
                why = why_unprotected(proc, seen.pids[one.id], given)
            except Ended:
                continue
            except NotAllowed as error:
                trouble = str(error)
                continue
            except OSError as error:
                trouble = error.strerror
                continue
            verdicts[one.key] = _Verdict(one.id, why)
    return _Look(verdicts, trouble)
