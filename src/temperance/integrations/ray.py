"""Sweeps on Ray: the work units go to the workers of a cluster, or to those of this machine.

The rows of a data set are loaded once, by the process that runs the sweep, and travel through Ray's
object store; the workers read no files and write none. They need the same Temperance, installed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from temperance.errors import InvalidInput, TemperanceError, need
from temperance.study.mappers import Lost, Mapper
from temperance.study.units import data_key

__all__ = ["ray_mapper"]

_CANCEL_TRIES = 10  # one second each, only for units that are still there
_LOOK = 1.0  # seconds between looks at the cluster, which may have grown meanwhile
_AHEAD = 1.5  # units handed out per place: a worker finds the next one waiting
_HELD = 2  # data sets kept in the object store beside those in use
_PATIENCE = 10.0  # seconds for a port to answer
Function = Callable[..., Any]


def ray_mapper(
    address: str | None = None, *, cpus: float = 1, gpus: float = 0, retries: int = 2
) -> Mapper:
    """Make a mapper that carries out units on Ray.

    Ray is started, or connected to, when the mapper is first asked, unless this process has done it
    already; what it has started it ends, what it has connected to it leaves.

    Args:
        address: ``"auto"``, the cluster that this machine is a part of; ``"HOST:PORT"`` or
            ``"ray://HOST:PORT"``, another; ``"local"``, a Ray of its own for the time of the sweep
            on this machine; None, as ``ray.init`` decides (the variable ``RAY_ADDRESS``, a running
            cluster, or a new one).
        cpus: CPUs that a unit takes, 0 or more; shares such as 0.5 are allowed.
        gpus: GPUs that a unit takes; 0.25 puts four units on one.
        retries: how often a unit is tried again after its worker died or its node was lost; after
            that the mapper yields ``Lost``.

    Returns:
        The mapper.

    Raises:
        MissingPackage: without Ray.
        InvalidInput: for negative shares or retries, or nothing at all of either. The mapper raises
            it if there is no Ray at the address, or no node with such shares.

    Example:
        >>> from temperance.integrations.ray import ray_mapper
        >>> list(ray_mapper("local")(abs, [-1, 2]))  # doctest: +SKIP
        [1, 2]
    """
    need("ray", "ray")
    _check_shares(cpus, gpus, retries)

    def mapper(function: Function, units: Iterable[Any]) -> Iterator[Any]:
        ray = need("ray", "ray")
        with _connected(ray, address):
            _check_room(ray, {"CPU": cpus, "GPU": gpus})
            remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(_call)
            cluster = _Cluster(ray, remote, cpus, gpus)
            yield from _map(cluster, function, units=iter(units), retries=retries)

    return mapper


def _check_shares(cpus: float, gpus: float, retries: int) -> None:
    for subject, value in (("cpus", cpus), ("gpus", gpus), ("retries", retries)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
            raise InvalidInput(
                subject, expected="a number of 0 or more", found=repr(value), fix="Change it."
            )
    if not cpus + gpus > 0:
        raise InvalidInput(
            "cpus and gpus", expected="a share of one of them", found="0", fix="Pass cpus=1."
        )


def _call(function: Function, unit: Any, *data: Any) -> Any:
    """What runs on a worker. Ray has set the number of threads to the share of CPUs."""
    return function(unit, *data)


@dataclass(eq=False)
class _Cluster:
    """What units are handed to, and the rows that lie in its object store."""

    ray: ModuleType
    remote: Any
    cpus: float
    gpus: float
    shelf: OrderedDict[Any, Any] = field(default_factory=OrderedDict)

    def places(self) -> int:
        """How many units fit into the cluster at the same time; at least one."""
        there = self.ray.cluster_resources()
        shares = (("CPU", self.cpus), ("GPU", self.gpus))
        return max(1, min(int(there.get(name, 0) / share) for name, share in shares if share))

    def hand_out(self, function: Function, unit: Any) -> Any:
        """Start a unit; give what stands for its result."""
        if not hasattr(function, "data_of"):
            return self.remote.remote(function, unit)
        key = data_key(unit.trials[0])
        if key not in self.shelf:
            try:
                data = function.data_of(unit)
            except Exception:  # the worker finds the same, and has a way to say it
                return self.remote.remote(function, unit)
            self.shelf[key] = self._put(data)
            while len(self.shelf) > _HELD:  # units under way hold on to theirs
                self.shelf.popitem(last=False)
        return self.remote.remote(function, unit, self.shelf[key])

    def _put(self, data: Any) -> Any:
        try:
            return self.ray.put(data)
        except self.ray.exceptions.RayError as error:
            raise TemperanceError(
                f"The rows do not fit into Ray's object store ({type(error).__name__}). Start Ray "
                "with more --object-store-memory. Finished trials are kept."
            ) from error


@dataclass
class _Job:
    unit: Any
    deaths: int = 0


def _map(
    cluster: _Cluster, function: Function, *, units: Iterator[Any], retries: int
) -> Iterator[Any]:
    ray = cluster.ray
    again: deque[_Job] = deque()
    under_way: dict[Any, _Job] = {}
    try:
        while True:
            while len(under_way) < _AHEAD * cluster.places():
                job = again.popleft() if again else _next_job(units)
                if job is None:
                    break
                under_way[cluster.hand_out(function, job.unit)] = job
            if not under_way:
                return
            ready, _ = ray.wait(list(under_way), num_returns=1, timeout=_LOOK)
            for reference in ready:
                job = under_way.pop(reference)
                yield from _collect(ray, reference, job, again=again, retries=retries)
    finally:
        _give_up(ray, list(under_way))


def _give_up(ray: ModuleType, references: list[Any]) -> None:
    """Cancel units; again where they are not gone, since one that just starts may not hear it."""
    for _ in range(_CANCEL_TRIES):
        if not references:
            return
        for reference in references:
            with contextlib.suppress(Exception):
                ray.cancel(reference, force=True)
        with contextlib.suppress(Exception):
            count = len(references)
            _, references = ray.wait(references, num_returns=count, timeout=1.0)


def _next_job(units: Iterator[Any]) -> _Job | None:
    for unit in units:
        return _Job(unit)
    return None


def _collect(
    ray: ModuleType, reference: Any, job: _Job, *, again: deque[_Job], retries: int
) -> Iterator[Any]:
    """Yield a result; put the unit back, or give it up, where its worker died."""
    try:
        result = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise TemperanceError(
            f"A Ray worker could not do its work: {error.cause!r}. Every node needs the same "
            "versions of Temperance, Python and Ray. Finished trials are kept."
        ) from error
    except ray.exceptions.RayError as error:  # worker or node died, or the object store lost it
        job.deaths += 1
        if job.deaths <= retries:
            again.append(job)
            return
        times = "once" if job.deaths == 1 else f"{job.deaths} times"
        kind = type(error).__name__
        yield Lost(job.unit, f"the Ray worker died {times} ({kind}; perhaps it ran out of memory)")
        return
    yield result


# ------------------------------------------------------------------ starting and connecting
@contextlib.contextmanager
def _connected(ray: ModuleType, address: str | None) -> Iterator[None]:
    """Use the Ray that is there; otherwise start or find one, quietly, and leave it at the end."""
    if ray.is_initialized():
        yield
        return
    _check_reachable(address)
    own = {"include_dashboard": False} if address == "local" else {}
    with warnings.catch_warnings(), _no_statistics():
        warnings.simplefilter("ignore")
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise _no_ray(address, str(error)) from error
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _no_statistics() -> Iterator[None]:
    """A Ray that is started here reports to nobody, unless the user has asked for it."""
    name = "RAY_USAGE_STATS_ENABLED"
    before = os.environ.get(name)
    os.environ.setdefault(name, "0")
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


def _check_reachable(address: str | None) -> None:
    """Try the port first: Ray itself would wait for minutes, and end the process."""
    host, colon, port = (address or "").rpartition("://")[2].rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise _no_ray(address, str(error)) from error


def _check_room(ray: ModuleType, shares: Mapping[str, float]) -> None:
    """Refuse what no node has: Ray would wait for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = {name: share for name, share in shares.items() if share}
    if any(all(node.get(n, 0) >= share for n, share in wanted.items()) for node in nodes):
        return
    most = [f"{n} {max((node.get(n, 0) for node in nodes), default=0):g}" for n in wanted]
    raise InvalidInput(
        "resources of a unit",
        expected=f"a node with {' and '.join(f'{n} {share:g}' for n, share in wanted.items())}",
        found=f"at most {' and '.join(most)} on one of {len(nodes)} nodes",
        fix="Ask for less in [resources] of the plan, or start such a node first.",
    )


def _no_ray(address: str | None, found: str) -> InvalidInput:
    return InvalidInput(
        f"Ray at {address or 'its default address'}",
        expected="a running Ray: auto, HOST:PORT, or local for one of its own",
        found=found,
        fix="Start one with `ray start --head`, or pass --ray local. A cluster that asks for a "
        "token (Ray's default) needs RAY_AUTH_MODE=token beside HOST:PORT.",
    )
