"""The scheduler's JSON (k8s.io/kube-scheduler/extender/v1), and the old add-on's.

Go's field names without tags: capitalised keys. The pod inside is an API object and is decoded
straight into ours, so that the other fields of a pod cost nothing. Decoding is strict about what we
use and blind to the rest; whatever cannot be read raises BadBody, for a 400.

Nodes come as names (`nodeCacheCapable: true`) or as whole objects. Of whole ones only the name is
read, and those that pass go back as they came: older schedulers go on with what they get back.
"""

from typing import Final, TypeVar

import msgspec

from gpushare.kube.objects import Pod

T = TypeVar("T")


class BadBody(ValueError):
    """A request body that cannot be read; the text says what is wrong where."""


class _Struct(msgspec.Struct, rename="pascal", gc=False):
    pass


# --- filter and prioritize ----------------------------------------------------------------------


class _Meta(msgspec.Struct, gc=False):
    name: str


class _NamedNode(msgspec.Struct, gc=False):
    metadata: _Meta


class _NodeList(msgspec.Struct, gc=False):
    items: list[msgspec.Raw] = []


class ExtenderArgs(_Struct):
    """The body of filter and of prioritize."""

    pod: Pod
    node_names: list[str] | None = None
    nodes: _NodeList | None = None


class NodeItems(msgspec.Struct, gc=False):
    """A NodeList in an answer: the nodes as they came."""

    items: list[msgspec.Raw]


class FilterResult(_Struct):
    """The answer of filter. `failed_nodes` may be helped by preemption, the others not."""

    nodes: NodeItems | None = None
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] = {}
    failed_and_unresolvable_nodes: dict[str, str] = {}
    error: str = ""


class HostPriority(_Struct):
    """One node's score, 0 to 10; a list of these is the answer of prioritize."""

    host: str
    score: int


class Candidates:
    """The nodes a request names, whichever way."""

    __slots__ = ("names", "raw")

    def __init__(self, args: ExtenderArgs) -> None:
        self.raw: dict[str, msgspec.Raw] | None = None
        """Name -> the whole node, where whole nodes came."""
        if args.node_names is not None:
            self.names = args.node_names
        elif args.nodes is not None:
            self.raw = {decode(_named, raw).metadata.name: raw for raw in args.nodes.items}
            self.names = list(self.raw)
        else:
            raise BadBody("neither NodeNames nor Nodes is given")


# --- preempt ------------------------------------------------------------------------------------


class MetaPod(_Struct):
    uid: str = msgspec.field(name="UID")


class MetaVictims(_Struct):
    """Victims on one node, by UID."""

    pods: list[MetaPod] | None = None
    num_pdb_violations: int = msgspec.field(default=0, name="NumPDBViolations")


class Victims(_Struct):
    """Victims on one node, as whole pods."""

    pods: list[Pod] | None = None
    num_pdb_violations: int = msgspec.field(default=0, name="NumPDBViolations")

    def meta(self) -> MetaVictims:
        pods = [MetaPod(pod.metadata.uid) for pod in self.pods or ()]
        return MetaVictims(pods, self.num_pdb_violations)


class PreemptionArgs(_Struct):
    """The body of preempt; one of the two maps is given, node name -> victims."""

    pod: Pod
    node_name_to_meta_victims: dict[str, MetaVictims] | None = None
    node_name_to_victims: dict[str, Victims] | None = None

    def victims(self) -> dict[str, MetaVictims]:
        """Node name -> victims, whichever way they came."""
        if self.node_name_to_meta_victims is not None:
            return self.node_name_to_meta_victims
        if self.node_name_to_victims is not None:
            return {node: victims.meta() for node, victims in self.node_name_to_victims.items()}
        raise BadBody("neither NodeNameToMetaVictims nor NodeNameToVictims is given")


class PreemptionResult(_Struct):
    node_name_to_meta_victims: dict[str, MetaVictims]


# --- bind ---------------------------------------------------------------------------------------


class BindingArgs(_Struct):
    pod_name: str
    pod_namespace: str
    pod_uid: str = msgspec.field(name="PodUID")
    node: str


class BindingResult(_Struct):
    """The answer of bind; an empty error is success."""

    error: str = ""


# --- the old add-on's inspection ------------------------------------------------------------------


class InspectPod(msgspec.Struct, rename={"used": "usedGPU"}, gc=False):
    name: str
    namespace: str
    used: int


class InspectDevice(msgspec.Struct, rename={"total": "totalGPU", "used": "usedGPU"}, gc=False):
    id: int
    total: int
    used: int
    pods: list[InspectPod]


class InspectNode(msgspec.Struct, rename={"total": "totalGPU", "used": "usedGPU"}, gc=False):
    name: str
    total: int
    used: int
    devs: list[InspectDevice]


class InspectResult(msgspec.Struct, gc=False):
    nodes: list[InspectNode]


# --- coding ---------------------------------------------------------------------------------------

_named: Final = msgspec.json.Decoder(_NamedNode)
args_decoder: Final = msgspec.json.Decoder(ExtenderArgs)
preemption_decoder: Final = msgspec.json.Decoder(PreemptionArgs)
binding_decoder: Final = msgspec.json.Decoder(BindingArgs)

encode: Final = msgspec.json.Encoder().encode

BOUND: Final = encode(BindingResult())


def decode(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    """The body. Raises BadBody."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadBody(str(error)) from None
