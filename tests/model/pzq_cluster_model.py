"""Three nodes of a pzq cluster over their real state module: what can happen to them, and what must hold.

Time goes in rounds, four of which are a timeout. In a round every node that runs ticks, and what is sent arrives in
it, unless the link is cut, slow (a round late), thin (keep-alives only) or doubles what it carries. Between rounds one
thing happens, or none. Behind a lazy link replicas are stored a round after they have come, and all else is handled at
once.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from omq.pzq.cluster.acked_keys import AckCheckpoint, parse_checkpoints
from omq.pzq.cluster.actions import (
    Answer,
    Broadcast,
    ForgetRemoteAck,
    Persist,
    RecordAcks,
    RecordRemoteAck,
    Replica,
    Restarted,
)
from omq.pzq.cluster.keys import Keys
from omq.pzq.cluster.leadership import Leadership, StaleDirectory
from omq.pzq.cluster.node import Node

NAMES = ("a", "b", "c")
TIMEOUT_S = 4.0
HEALING = 26  # rounds within which a whole cluster is at rest again

LINKS = ("cut", "slow", "thin", "twice")
KINDS = ("crash", "wipe", "stop", *LINKS)

Event = tuple[str, ...]


def key_in(store: str, number: int) -> str:
    """A key as nodes make them: those of one store count up, so that a node keeps them as a run."""
    return f"1|{store:0>8}-0000-8000-8000-{number:012x}"


def is_of(store: str, key: str) -> bool:
    return key[2:10] == f"{store:0>8}"


def key_owner(key: str) -> str:
    return key[2:10].lstrip("0")[0]


class Broken(AssertionError):
    """A promise is."""


@dataclass
class Machine:
    """A process and its disk."""

    name: str
    store: str
    records: dict[str, Any] | None = None
    own: dict[str, int] = field(default_factory=dict)
    held: dict[str, dict[str, int]] = field(default_factory=dict)
    remote_acks: dict[str, str] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    known: dict[str, Any] = field(default_factory=dict)
    node: Node | None = None
    incarnation: int = 0  # whatever the disk knows of it, as a clock has it
    stopped: bool = False
    storing: list[tuple[str, str, Keys, Sequence[str]]] = field(default_factory=list)  # replicas that have come
    known_acked: set[str] = field(default_factory=set)  # the messages that this run knows to be acknowledged
    made: list[int] = field(default_factory=list)  # the numbers of this store's messages
    stated: dict[str, Any] = field(default_factory=dict)  # the statements that are on the disk
    #: Its claims of this run, by owner: the record, and who knew then which messages are acknowledged.
    claims: dict[str, tuple[Any, frozenset[tuple[str, str]]]] = field(default_factory=dict)

    def begin(self, now: float) -> None:
        self.incarnation += 1
        self.starts.append(self.incarnation)
        self.storing, self.known_acked, self.claims = [], set(), {}
        leadership = Leadership(
            self.name,
            [name for name in NAMES if name != self.name],
            timeout=TIMEOUT_S,
            incarnations=self.starts,
            now=now,
            store=self.store,
            leaders=self.records,
            fenced=True,
            known=self.known,
        )
        self.node = Node(leadership, replicas=1, replication_timeout=0.5, is_mine=partial(is_of, self.store))
        self.node.load(
            [([key], place) for key, place in self.own.items()],
            {owner: [([key], place) for key, place in keys.items()] for owner, keys in self.held.items()},
            [(owner, key) for key, owner in self.remote_acks.items()],
        )
        self.node.receive_checkpoints(parse_checkpoints(self.stated))
        self.records = dict(leadership.leaders) if self.records is not None else None
        self.stopped = False

    def tick(self, now: float) -> None:
        """States what is acknowledged, and keeps all statements."""
        assert self.node is not None
        if ranges := [(number, number) for number in self.made if key_in(self.store, number) not in self.own]:
            stem, done = key_in(self.store, 0)[2:20], self.node.acked
            done.add_checkpoint(self.name, stem, AckCheckpoint(done.next_time(self.name, stem, 1), ranges))
        self.stated = self.node.acked.to_json()
        self.node.tick(now)

    def put_back(self, copy: Machine) -> None:
        """Its disk is as it was when it was copied; its clock goes on."""
        now, self.node = self.incarnation, None
        self.__dict__.update(pickle.loads(pickle.dumps({**copy.__dict__, "node": None, "incarnation": now}, -1)))

    @property
    def runs(self) -> bool:
        return self.node is not None and not self.stopped


class Cluster:
    """A state that is explored.

    Args:
        messages: That producers may send, each to the first node.
        kinds: Which faults may happen.
    """

    def __init__(self, messages: int = 1, kinds: tuple[str, ...] = KINDS):
        self.now = 0.0
        self.kinds = kinds
        self.left = messages
        self.machines = {name: Machine(name, f"{name}0") for name in NAMES}
        self.links: dict[tuple[str, str], str] = {}
        self.late: list[tuple[str, str, Any]] = []
        self.queued: list[tuple[str, Any]] = []  # for those that are stopped
        self.acked: set[str] = set()  # to the producer
        self.consumed: dict[str, str] = {}  # where it was acknowledged first; "": that disk is lost
        self.wiped = 0
        self.lost = 0  # disks, since all was whole again
        self.faults = 0
        self.whole = 0  # rounds for which nothing was wrong
        self.knowing: frozenset[tuple[str, str]] = frozenset()  # the nodes that knew each ack a round ago
        self.apart: dict[frozenset[str], float] = {}  # when two running nodes last missed a message of each other
        for machine in self.machines.values():
            machine.begin(self.now)
        for _ in range(3):
            self.round()

    def copy(self) -> Cluster:
        return next(self.copies())

    def copies(self) -> Iterator[Cluster]:
        """Yields copies without end: all but the first take half of the time."""
        content = pickle.dumps(self, -1)
        while True:
            yield pickle.loads(content)

    # ------------------------------------------------------------------ what can happen

    def events(self, most: int) -> list[Event]:
        """Returns the possible next events, with a bounded number of faults in all."""
        found: list[Event] = [("idle",)]
        if self.left and self.machines["a"].runs:
            found.append(("produce",))
        for machine in self.machines.values():
            for owner, key in self.deliverable(machine):
                found.append(("consume", machine.name, owner, key))
            if machine.node is None:
                found.append(("return", machine.name))
            elif machine.stopped:
                found.append(("go on", machine.name))
        if self.links:
            found.append(("heal",))
            if len(self.links) > 1:
                found += [("heal", *link) for link in sorted(self.links)]
        if self.faults >= most:
            return found
        for machine in self.machines.values():
            if machine.node is not None:
                found += [(kind, machine.name) for kind in ("crash", "wipe") if kind in self.kinds]
                if "stop" in self.kinds and not machine.stopped:
                    found.append(("stop", machine.name))
        for kind in (*LINKS, "lazy"):
            if kind in self.kinds:
                found += [(kind, one, other) for one in NAMES for other in NAMES if one != other]
        if "cut" in self.kinds:
            found += [("part", name) for name in NAMES]
        return found

    def happen(self, event: Event) -> None:
        """One thing happens."""
        kind = event[0]
        machine = self.machines[event[1]] if len(event) > 1 else self.machines["a"]
        if kind in ("crash", "wipe", "stop", "part", "lazy", *LINKS):
            self.faults += 1
        if kind == "produce":
            assert machine.node is not None
            key = key_in(machine.store, self.left)
            machine.made.append(self.left)
            self.left -= 1
            machine.own[key] = 0
            machine.node.produced([key], 0, self.now)
            self.carry(machine)
        elif kind == "consume":
            self.consume(machine, event[2], event[3])
        elif kind in ("crash", "wipe"):
            machine.node, machine.stopped = None, False
            self.queued = [one for one in self.queued if one[0] != machine.name]
            if kind == "wipe":
                self.wiped += 1
                self.lost += 1
                machine.store = f"{machine.name}{self.wiped}"
                machine.records = None
                machine.own, machine.held, machine.remote_acks = {}, {}, {}
                machine.made, machine.stated = [], {}
                machine.starts, machine.known = [], {}
                self.consumed = {key: "" if at == machine.name else at for key, at in self.consumed.items()}
        elif kind == "return":
            machine.begin(self.now)
        elif kind == "stop":
            machine.stopped = True
        elif kind == "go on":
            self.go_on(machine)
        elif kind == "heal":
            if len(event) > 1:
                del self.links[event[1], event[2]]
            else:
                self.links.clear()
        elif kind == "part":
            for name in NAMES:
                if name != machine.name:
                    self.links[name, machine.name] = self.links[machine.name, name] = "cut"
        elif kind != "idle":
            self.links[event[1], event[2]] = kind

    def go_on(self, machine: Machine) -> None:
        machine.stopped = False
        self.check_leadership()  # before it learns of anything
        waiting = [one for to, one in self.queued if to == machine.name]
        self.queued = [one for one in self.queued if one[0] != machine.name]
        for message in waiting:
            self.arrive(machine, message)

    def deliverable(self, machine: Machine) -> list[tuple[str, str]]:
        """Returns the messages that a consumer of a node may get."""
        if not machine.runs:
            return []
        assert machine.node is not None
        delivers = machine.node.delivers
        found = [(machine.name, key) for key in machine.own] if delivers(machine.name, self.now) else []
        for owner, keys in machine.held.items():
            if delivers(owner, self.now):
                found += [(owner, key) for key in keys]
        return found

    def consume(self, machine: Machine, owner: str, key: str) -> None:
        assert machine.node is not None
        self.consumed.setdefault(key, machine.name)
        machine.node.consumed(owner, [key])
        self.carry(machine)
        if key in machine.own:
            del machine.own[key]
        for keys in machine.held.values():
            keys.pop(key, None)

    # ------------------------------------------------------------------ a round

    def round(self) -> None:
        """Time goes on."""
        self.now += 1.0
        self.check_leadership()
        late, self.late = self.late, []
        for sender, to, message in late:
            self.reach(sender, to, message)
        for machine in self.machines.values():
            if machine.runs:
                assert machine.node is not None
                storing, machine.storing = machine.storing, []
                for one in storing:
                    self.store(machine, *one)
                machine.tick(self.now)
                self.carry(machine)
                for _, key in self.deliverable(machine):
                    if key in machine.known_acked:
                        raise Broken(f"{machine.name} was notified that {key} is acknowledged, and delivers it")
        self.check_knowledge()
        if self.links or not all(machine.runs for machine in self.machines.values()):
            self.whole = 0
        else:
            self.whole += 1
            if self.whole >= HEALING:
                self.lost = 0
            self.check_return()

    def carry(self, machine: Machine) -> None:
        """Does what a node wants done; what it sends arrives at once, where nothing is in the way."""
        assert machine.node is not None
        actions, machine.node.actions = machine.node.actions, []
        for action in actions:
            match action:
                case Persist():
                    machine.records = dict(machine.node.leadership.leaders)
                case RecordAcks(owner, places):
                    for key in places:
                        (machine.own if key in machine.own else machine.held.get(owner, {})).pop(key, None)
                case RecordRemoteAck(owner, key):
                    machine.remote_acks[key] = owner
                case ForgetRemoteAck(key):
                    machine.remote_acks.pop(key, None)
                case Answer(keys, done):
                    if done:
                        self.acked.update(keys)
                case Replica(peer, _, _):
                    self.send(machine.name, peer, (machine.name, action))
                case Restarted():
                    machine.known = dict(machine.node.leadership.known)
                case Broadcast(_, body):
                    for peer in [body["to"]] if "to" in body else [name for name in NAMES if name != machine.name]:
                        self.send(machine.name, peer, (machine.name, action))
        self.check_leadership()

    def send(self, sender: str, to: str, message: Any) -> None:
        how = self.links.get((sender, to), "")
        if how == "cut" or (how == "thin" and getattr(message[1], "kind", "") != "KALV"):
            return
        if how == "slow":
            self.late.append((sender, to, message))
            return
        for _ in range(2 if how == "twice" else 1):
            self.reach(sender, to, message)

    def reach(self, sender: str, to: str, message: Any) -> None:
        machine = self.machines[to]
        if self.links.get((sender, to)) == "cut":
            return
        if machine.stopped:
            self.queued.append((to, message))
        elif machine.node is not None:
            self.arrive(machine, message)

    def arrive(self, machine: Machine, message: Any) -> None:
        sender, action = message
        node = machine.node
        assert node is not None
        match action:
            case Broadcast(kind, body):
                if kind == "REMOVES":
                    machine.known_acked.update(body["keys"])
                try:
                    node.receive(kind, body, self.now)
                except StaleDirectory as error:
                    if error.node == machine.name:
                        machine.node = None  # it has no part in the cluster any more
                        return
            case Replica(_, origin, keys):
                wanted = node.wanted(origin, keys)
                if self.links.get((sender, machine.name)) == "lazy":
                    machine.storing.append((sender, origin, keys, wanted))
                else:
                    self.store(machine, sender, origin, keys, wanted)
            case Keys() | list():
                node.replicated(sender, action, self.now)
        self.carry(machine)

    def store(self, machine: Machine, sender: str, origin: str, keys: Keys, wanted: Sequence[str]) -> None:
        assert machine.node is not None
        held = machine.held.setdefault(origin, {})
        if new := [key for key in wanted if key not in held]:  # else they were with the store already
            held.update(dict.fromkeys(new, 0))
            machine.node.stored(origin, new, 0, self.now)
        self.send(machine.name, sender, (machine.name, keys))
        self.carry(machine)

    # ------------------------------------------------------------------ what must hold

    def check_leadership(self) -> None:
        """Checks that no two nodes deliver, and none in a minority."""
        for owner in NAMES:
            who = [
                machine.name
                for machine in self.machines.values()
                if machine.runs and machine.node and machine.node.leadership.delivers(owner, self.now)
            ]
            if len(who) > 1:
                raise Broken(f"{who} deliver what is {owner}'s")

    def check_knowledge(self) -> None:
        """Checks that no node delivers a message that was acknowledged at a node it reaches, when it claimed the queue.

        A node that has lost its disk may: it gets back what was its own from the first node that it reaches.
        """
        for sender, to in self.links:
            self.apart[frozenset((sender, to))] = self.now
        for machine in self.machines.values():
            if machine.stopped:
                self.apart.update({frozenset((machine.name, name)): self.now for name in NAMES})
        self.apart = {pair: when for pair, when in self.apart.items() if self.now - when < 3}
        knew, nodes = self.knowing, {one.name: one.node for one in self.machines.values() if one.runs and one.node}
        self.knowing = frozenset(
            (name, key)
            for name, node in nodes.items()
            for key in self.consumed
            if node._classify(key_owner(key), [key])["gone"]
        )
        for name, node in nodes.items():
            machine = self.machines[name]
            for owner in NAMES:
                record = node.leadership.leader_epoch(owner)
                if record[1] != name:
                    machine.claims.pop(owner, None)
                elif owner not in machine.claims or machine.claims[owner][0] != record:
                    machine.claims[owner] = record, knew
            for owner, key in self.deliverable(machine):
                for other in nodes:
                    if (
                        (other, key) in machine.claims[owner][1] & self.knowing
                        and frozenset((name, other)) not in self.apart
                        and other != name
                        and not self.lost
                        and node.leadership.alive(other, self.now)
                    ):
                        raise Broken(f"{other} knows that {key} is acknowledged, and {name} delivers it")

    def check_return(self) -> None:
        """Checks that consumed messages do not come back to a cluster that is whole, however it came to be so."""
        if self.whole < 2:
            return
        for machine in self.machines.values():
            for _, key in self.deliverable(machine):
                if self.consumed.get(key):
                    raise Broken(f"{key} was consumed at {self.consumed[key]}, and {machine.name} delivers it again")

    def check_healing(self) -> None:
        """Checks the state once all nodes run and reach each other for a while. Ends this state."""
        self.links.clear()
        for machine in self.machines.values():
            if machine.node is None:
                machine.begin(self.now)
            elif machine.stopped:
                self.go_on(machine)
        lost = self.lost
        for _ in range(HEALING):
            self.round()
        self.lost = lost
        where: dict[str, list[str]] = {}
        for machine in self.machines.values():
            assert machine.node is not None
            for _, key in self.deliverable(machine):
                where.setdefault(key, []).append(machine.name)
            if machine.node.remote_acks or machine.remote_acks:
                raise Broken(f"{machine.name} remembers {machine.remote_acks} for ever")
            if not machine.node.leadership.delivers(machine.name, self.now):
                raise Broken(f"{machine.name} does not get back what is its own")
            if sorted(machine.node.own) != sorted(machine.own) or machine.node.holds() != {
                owner: len(keys) for owner, keys in machine.held.items() if keys
            }:
                raise Broken(f"{machine.name} does not know what it has")
        for key in self.acked - set(self.consumed):
            if self.lost < 2 and len(where.get(key, [])) != 1:
                raise Broken(f"{key} was acknowledged to its producer, and {where.get(key, [])} deliver it")
        for key, at in self.consumed.items():
            if not at:
                continue
            for machine in self.machines.values():
                if key in machine.own or any(key in keys for keys in machine.held.values()):
                    raise Broken(f"{key} was consumed, and {machine.name} has it")

    # ------------------------------------------------------------------ which states are one

    def mark(self) -> bytes:
        """The same for states that go on alike."""
        now = self.now
        machines = []
        for machine in self.machines.values():
            of_node: Any = None
            if machine.node is not None:
                of_node = _of_node(machine.node, now)
            machines.append(
                (
                    machine.store,
                    machine.records and sorted(machine.records.items()),
                    list(machine.own),
                    sorted((owner, list(keys)) for owner, keys in machine.held.items() if keys),
                    sorted(machine.remote_acks.items()),
                    machine.made,
                    sorted((owner, sorted(stated.items())) for owner, stated in machine.stated.items()),
                    machine.stopped,
                    sorted((owner, sorted(knew)) for owner, (_, knew) in machine.claims.items()),
                    of_node,
                )
            )
        late = [(sender, to, _of_message(message, self)) for sender, to, message in self.late]
        queued = [(to, _of_message(message, self)) for to, message in self.queued]
        return repr(
            (
                machines,
                sorted(self.links.items()),
                late,
                queued,
                sorted(self.acked),
                sorted(self.consumed.items()),
                self.left,
                self.wiped,
                self.lost and (self.lost, min(self.whole, HEALING)),
                self.faults,
                sorted((sorted(pair), self.now - when) for pair, when in self.apart.items()),
            )
        ).encode()


def _ago(now: float, when: float) -> float:
    return min(now - when, TIMEOUT_S + 1)


def _of_node(node: Node, now: float) -> Any:
    leadership = node.leadership
    number = leadership._number
    peers = [
        (
            name,
            _ago(now, peer.last_seen),
            peer.store,
            peer.unattached,
            peer.knows_us,
            peer.incarnation > 0,
            _ago(now, peer.confirmed),
            sorted(peer.leaders.items()),
            sorted(peer.receives_from),
            sorted(peer.holds.items()),
        )
        for name, peer in leadership.peers.items()
    ]
    asked = [(peer, sorted((key, _ago(now, when)) for key, when in keys.items())) for peer, keys in node._asked.items()]
    return (
        peers,
        sorted(leadership.leaders.items()),
        leadership._unattached,
        _ago(now, leadership._started) if leadership._unattached else 0,
        [(number - one, _ago(now, when)) for one, when in leadership._sent.items()],
        sorted(node.acked),
        sorted((owner, sorted(stated.items())) for owner, stated in node.acked.to_json().items()),
        node._sent_checkpoints[0],
        min(now - node._sent_checkpoints[1], 2 * TIMEOUT_S),
        sorted(node._unscanned),
        [
            (peer, owner, list(keys))
            for peer, by_owner in node._unconfirmed.items()
            for owner, keys in by_owner.items()
            if keys
        ],
        [
            (peer, [(list(keys), _ago(now, when)) for keys, when in in_flight.values()])
            for peer, in_flight in node._in_flight.items()
        ],
        sorted(
            (owner, it and (it[0], it[2]), it and min(now - when, 2 * TIMEOUT_S))
            for owner, (it, when) in node._compared.items()
        ),
        asked,
        [(range_, sorted(having), until - now) for range_, (having, until) in node._pending._messages.ranges()],
        sorted(node.remote_acks),
        [
            (owner, peer, list(doubt.keys), _ago(now, doubt.since) if doubt.keys else 0)
            for owner, doubts in node._takeover._syncs.items()
            for peer, doubt in doubts.items()
        ],
        [(peer, list(keys)) for peer, by_owner in node._unconfirmed_acks.items() for keys in by_owner.values()],
    )


def _of_message(message: Any, cluster: Cluster) -> Any:
    sender, action = message
    if not isinstance(action, Broadcast):
        return sender, action
    if action.kind != "KALV":
        incarnation = cluster.machines[sender].incarnation - action.body.get("incarnation", 0)
        return sender, action.kind, sorted({**action.body, "incarnation": incarnation}.items())
    state = action.body
    numbers = {name: machine.node.leadership._number for name, machine in cluster.machines.items() if machine.node}
    latest = {
        who: (one == cluster.machines[who].incarnation, numbers.get(who, 0) - last)
        for who, (one, last) in state["heard"].items()
    }
    return (
        sender,
        cluster.machines[sender].incarnation - state["incarnations"][-1],
        numbers.get(sender, 0) - state["number"],
        state["store"],
        state["records"],
        sorted(latest.items()),
        state["holds"],
        sorted((who, one == cluster.machines[who].incarnation) for who, (_, one) in state["known"].items()),
    )
