"""The best node for one pod, kept current over many.

A question is a request, the constraints and the resources beside GPU memory; pods of equal
questions share a contest (policy.survey), so that a placement costs the nodes that changed since,
not the size of the cluster.

Which GPU a pod gets may also depend on where its owner's other pods are, but only on nodes that
have some. So the contest is held for an owner without any pods, the owner's own nodes are asked
apart, and the better of the two wins. An owner with pods on many nodes gets a contest of its own.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from gpushare.model.gpus import NodeBooks
from gpushare.model.holding import Placement
from gpushare.model.ledger import Ledger
from gpushare.model.owner import Owner
from gpushare.model.request import Request
from gpushare.policy.fit import NOBODY, place
from gpushare.policy.rank import Ranking, RankKey
from gpushare.policy.survey import Contest, Survey
from gpushare.simulate.constraints import Constraints, obstacle
from gpushare.simulate.hosts import Ask, Hosts
from gpushare.simulate.scene import Scene, Waiting

FEW = 8
"""Where a pod may go to so few nodes only, they are asked one by one."""

SEVERAL = 24
"""Up to so many nodes of an owner are asked apart; most answers are still known."""

Question = tuple[Request, Constraints, Ask]


@dataclass(slots=True)
class _Asked:
    """One question: the nodes that constraints allow, and its contests."""

    eligible: frozenset[str]
    surveys: dict[Owner, Survey] = field(default_factory=dict)
    contests: dict[Owner, Contest] = field(default_factory=dict)


class Chooser:
    """Finds the node and the GPUs for pods, over books and hosts that change between questions."""

    def __init__(self, scene: Scene, ledger: Ledger, hosts: Hosts, ranking: Ranking) -> None:
        self._scene = scene
        self._ledger = ledger
        self._hosts = hosts
        self._ranking = ranking
        self._eligible: dict[Constraints, frozenset[str]] = {}
        """Constraints -> names of the nodes that meet them."""
        self._questions: dict[Question, _Asked] = {}

    def eligible(self, constraints: Constraints) -> frozenset[str]:
        """The nodes that a pod's constraints allow."""
        found = self._eligible.get(constraints)
        if found is None:
            nodes = self._scene.nodes
            named = constraints.named_nodes
            names = nodes if named is None else [name for name in named if name in nodes]
            found = frozenset(
                name for name in names if obstacle(constraints, nodes[name].face) is None
            )
            self._eligible[constraints] = found
        return found

    def best(self, pod: Waiting) -> tuple[str, Placement] | None:
        """The node a pod goes to and its GPUs there, or None. Its request must be sound."""
        assert pod.request is not None
        question = (pod.request, pod.constraints, pod.ask)
        asked = self._questions.get(question)
        if asked is None:
            asked = self._questions[question] = _Asked(self.eligible(pod.constraints))
        if len(asked.eligible) <= FEW:
            return _winner([self._answer(name, pod, pod.owner) for name in asked.eligible])
        own = self._ledger.nodes_of(pod.owner)
        if len(own) > SEVERAL:
            return _winner([self._contest(asked, pod, pod.owner, ())])
        answers = [self._contest(asked, pod, NOBODY, own)]
        if own:
            survey = self._survey(asked, pod, pod.owner)
            answers += [self._kept(name, pod, survey) for name in own if name in asked.eligible]
        return _winner(answers)

    def _answer(self, name: str, pod: Waiting, owner: Owner) -> "_Answer | None":
        assert pod.request is not None
        if self._hosts.lacking(name, pod.ask) is not None:
            return None
        books = self._ledger.books(name)
        answer = place(books, pod.request, owner)
        if not isinstance(answer, Placement):
            return None
        return self._ranking(books, pod.request, answer), name, answer

    def _kept(self, name: str, pod: Waiting, survey: Survey) -> "_Answer | None":
        """The same from a survey, which asks again only where a node's books have changed."""
        if self._hosts.lacking(name, pod.ask) is not None:
            return None
        key, answer = survey.rank(name), survey.answer(name)
        return (key, name, answer) if key is not None and isinstance(answer, Placement) else None

    def _survey(self, asked: _Asked, pod: Waiting, owner: Owner) -> Survey:
        survey = asked.surveys.get(owner)
        if survey is None:
            assert pod.request is not None
            survey = Survey(self._ledger, pod.request, owner, self._ranking)
            asked.surveys[owner] = survey
        return survey

    def _contest(
        self, asked: _Asked, pod: Waiting, owner: Owner, skip: Collection[str]
    ) -> "_Answer | None":
        survey = self._survey(asked, pod, owner)
        contest = asked.contests.get(owner)
        if contest is None:
            eligible, ask = asked.eligible, pod.ask

            def admits(books: NodeBooks) -> bool:
                name = books.node.name
                return name in eligible and self._hosts.lacking(name, ask) is None

            contest = asked.contests[owner] = Contest(survey, self._ledger, admits)
        best = contest.best(skip)
        if best is None:
            return None
        key = survey.rank(best[0])
        assert key is not None
        return key, *best


_Answer = tuple[RankKey, str, Placement]
"""(rank key, node, GPUs); the smallest wins, and the first by name among equals."""


def _winner(answers: list[_Answer | None]) -> tuple[str, Placement] | None:
    fits = [answer for answer in answers if answer is not None]
    if not fits:
        return None
    _, name, placement = min(fits, key=lambda answer: answer[:2])
    return name, placement
