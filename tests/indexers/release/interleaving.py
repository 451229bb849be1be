"""Two commands at once, in every order: one is held at one of its requests to the store or to the
cluster until the other one has ended, or waits for it. Where it sleeps, as a process that is
stopped, its leases are not renewed either.

Requests are held in the process, before they are sent. All of them pass `REQUESTS`: files are
reached by the methods of `Store` alone, a cluster by `Cluster.try_once`; for a bucket the calls of
its client that write are held too, which come after the checks of `Store`.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any, Protocol

import pytest

from cogr.errors import CogrError
from cogr.store import Store
from indexers.backends.opensearch.client import Cluster

PATIENT, ASLEEP = 0.6, 6.0
"""Seconds for which a command is held, or sleeps, where the other one waits for it."""
REQUESTS = {
    Store: ("read", "write", "create", "swap", "list", "exists", "remove", "open"),
    Cluster: ("try_once",),
}
Action = Callable[[Callable[[str], None]], Any]
"""A command, which is told where to say something."""


class World(Protocol):
    """A catalogue, the commands that switch in it, and what is there then: what serves, and the
    history.
    """

    @property
    def actions(self) -> Mapping[str, Action]: ...

    @property
    def found(self) -> Any: ...


def no_bar(*_: object) -> Any:
    return nullcontext(lambda _: None)


_me: ContextVar[str] = ContextVar("_me", default="")


@dataclass
class Held:
    """A command in a thread that stops before its request `at`, counted from 1."""

    at: int
    thread: threading.Thread
    sleeps: bool = False
    count: int = 0
    reached: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)

    def request(self) -> None:
        if self.sleeps and _me.get() == "first" and self.reached.is_set():
            self.go.wait(30)
        if threading.current_thread() is self.thread:
            self.count += 1
            if self.count == self.at:
                self.reached.set()
                self.go.wait(30)


_held: list[Held] = []


@contextmanager
def watched() -> Iterator[None]:
    """Requests are counted, and held where a test wants it."""

    def wrapped(real: Callable[..., Any]) -> Callable[..., Any]:
        def request(*given: Any, **named: Any) -> Any:
            for held in [*_held]:
                held.request()
            return real(*given, **named)

        return request

    with pytest.MonkeyPatch.context() as patch:
        for owner, names in REQUESTS.items():
            for name in names:
                patch.setattr(owner, name, wrapped(getattr(owner, name)))
        yield


@dataclass
class Outcome:
    """How a command ended: "" or the error's sentence; and what it said."""

    error: str = ""
    said: list[str] = field(default_factory=list)


def run(action: Action, outcome: Outcome, me: str = "") -> None:
    _me.set(me)
    try:
        action(outcome.said.append)
    except CogrError as error:
        outcome.error = f"{type(error).__name__}: {error}"
    except Exception as error:
        outcome.error = f"BUG {error!r}"
        raise


def interleave(
    first: Action, second: Action, at: int, *, sleeps: bool = False
) -> tuple[Outcome, Outcome]:
    """The outcomes of both, the first one held before its request `at`."""
    outcomes = Outcome(), Outcome()
    thread = threading.Thread(target=run, args=(first, outcomes[0], "first"), daemon=True)
    held, other = Held(at, thread, sleeps), threading.Thread(target=run, args=(second, outcomes[1]))
    _held.append(held)
    try:
        thread.start()
        while thread.is_alive() and not held.reached.wait(0.005):
            pass
        other.start()
        other.join(ASLEEP if sleeps else PATIENT)
        held.go.set()
        for one in (thread, other):
            one.join(60)
            assert not one.is_alive(), "neither ends"
    finally:
        _held.remove(held)
    return outcomes


def requests_of(action: Action) -> int:
    """How many requests a command makes."""
    held = Held(-1, threading.current_thread())
    _held.append(held)
    run(action, Outcome())
    _held.remove(held)
    return held.count


Order = tuple[str, ...]


def requests_so_far() -> int:
    """How many a command has made of which `requests_of` counts them."""
    return _held[-1].count


def in_order(worlds: Callable[[], World], order: Order, known: dict[Order, Any]) -> Any:
    """What is there after commands one after the other; None where one is impossible, such as to
    publish what was pruned.
    """
    if order not in known:
        world, ended = worlds(), [Outcome() for _ in order]
        for name, outcome in zip(order, ended, strict=True):
            run(world.actions[name], outcome)
        known[order] = None if any(one.error for one in ended) else world.found
    return known[order]


def interleavings(
    worlds: Callable[[], World],
    names: Sequence[str],
    most: int,
    seed: int = 0,
    *,
    sleeps: bool = False,
    pairs: int | None = None,
) -> Counter[str]:
    """How pairs of commands end, all or so many, the first held at `most` of its requests: what is
    there is what one of the two orders gives, of the commands that were acknowledged. One that lost
    its lease in its sleep may have switched before.
    """
    ended, draw, serial = Counter[str](), random.Random(seed), dict[Order, Any]()
    chosen = [*permutations(names, 2)]
    chosen = draw.sample(chosen, pairs) if pairs else chosen
    counts = {name: requests_of(worlds().actions[name]) for name in {one for one, _ in chosen}}
    for pair in chosen:
        count = counts[pair[0]]
        for at in sorted(draw.sample(range(1, count + 1), min(most, count))):
            world = worlds()
            outcomes = interleave(*(world.actions[name] for name in pair), at, sleeps=sleeps)
            done = tuple(n for n, one in zip(pair, outcomes, strict=True) if not one.error)
            told = f"{pair}, held at {at} of {count}: {outcomes}"
            assert not any(one.error.startswith("BUG") for one in outcomes), told
            maybe = pair if sleeps and outcomes[0].error.startswith("LockedError") else done
            found, wanted = world.found, dict.fromkeys((done, done[::-1], maybe, maybe[::-1]))
            possible = any(found == in_order(worlds, order, serial) for order in wanted)
            assert possible, f"{told}: {found}, {serial}"
            ended[" and ".join(done)] += 1
    print(f"{sum(ended.values())} interleavings: {dict(ended)}")
    return ended
