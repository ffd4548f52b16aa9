"""Carries out the orders that come on the control socket.

Called by the streams thread alone.
"""

from __future__ import annotations

import time

from python_backends.cluster.cluster import Cluster
from python_backends.nouns.order import AUTO, Order, Progress, RefusedOrderError, next_answer
from python_backends.settings import ClusterSettings
from python_backends.streams.table import SERVER_ENDS, StreamTable
from python_backends.triton_models.instance_watch import InstanceWatch
from python_backends.triton_models.status import Status
from python_backends.watching.metrics import Metrics
from python_backends.wires.control import Asked, ControlEnd

CHECK_EVERY_S = 0.1  # how far an order is


class Orders:
    """Owns the orders that are being carried out."""

    def __init__(
        self, settings: ClusterSettings, table: StreamTable, instances: InstanceWatch, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._table = table
        self._instances = instances
        self._loads = instances.loads
        policy = settings.policy if instances.cluster is not None else ""
        self._status = Status(table, instances.loads, metrics, policy)
        self._open: list[tuple[Asked, Progress]] = []
        self._check_at_s = 0.0

    def look(self, control: ControlEnd) -> None:
        """Once a turn: begins to carry out those that have come, and answers."""
        for asked in control.take():
            self._open.append((asked, self._carry_out(asked.order)))
            self._check_at_s = 0.0
        now_s = time.monotonic()
        if self._open and now_s >= self._check_at_s:
            self._check_at_s = now_s + CHECK_EVERY_S
            self._open = [(asked, each) for asked, each in self._open if asked.say(next_answer(each))]

    def wait_s(self) -> float:
        """How long nothing will be due if nothing comes in."""
        return CHECK_EVERY_S if self._open else float("inf")

    # --- how each order is carried out

    def _carry_out(self, order: Order) -> Progress:
        if order.what == "status":
            return self._status.of(order.client_id)
        if order.what == "close":
            return (yield from self._close())
        cluster, number = self._instances.cluster, order.instance
        if cluster is None:
            limit = "cluster.instances or cluster.max_instances must be above 1"
            raise RefusedOrderError(f"{order.what}: there is one instance ({limit})")
        if order.what == "scale":
            return (yield from self._scale(cluster, order.number))
        if number not in cluster.wanted:
            known = ", ".join(map(str, sorted(cluster.wanted)))
            raise RefusedOrderError(f"there is no instance {number}; there are {known}")
        if order.what == "move":
            return (yield from cluster.move(order.request, number))
        if order.what == "drain":
            return (yield from self._drain(cluster, number))
        cluster.scaling.restore(number)
        return f"instance {number} gets requests again"

    def _drain(self, cluster: Cluster, number: int) -> Progress:
        began_s = time.monotonic()
        cluster.scaling.drain(number)
        while number in cluster.wanted:  # else it has ended
            if number not in cluster.scaling.draining:
                raise RefusedOrderError(f"another command has restored instance {number} meanwhile")
            num_left = max(cluster.num_left(number), self._loads.num_requests(number))
            if not num_left:
                break
            yield f"{num_left} requests are still in instance {number}"
        return f"instance {number} is empty after {time.monotonic() - began_s:.1f} s"

    def _scale(self, cluster: Cluster, number: int) -> Progress:
        settings, began_s = self._settings, time.monotonic()
        if number == AUTO:
            cluster.scaling.scale(None)
            if not settings.follows_load:
                return f"there will be {settings.instances} instances (cluster.instances)"
            bounds = f"{settings.instances} to {settings.max_instances}"
            return f"there will be {bounds} instances, as the load says"
        if not 1 <= number <= settings.most_instances:
            limit = "cluster.max_instances" if settings.follows_load else "cluster.instances"
            allowed = f"auto or a number from 1 to {settings.most_instances} ({limit})"
            raise RefusedOrderError(f"scale {number}: must be {allowed}")
        cluster.scaling.scale(number)
        while True:
            state = cluster.scaling.state
            if state.ordered != number:
                raise RefusedOrderError("another command has ordered another number of instances meanwhile")
            # those that an order has emptied count as ready
            ready = [each for each in state.wanted if self._loads.is_ready(each, drained=state.drained)]
            if len(ready) == len(state.wanted) == number:
                took_s = time.monotonic() - began_s
                return f"the number of instances is {number}; all are ready after {took_s:.1f} s"
            yield f"{len(ready)} of {number} instances are ready, {len(state.wanted)} run"

    def _close(self) -> Progress:
        """Open requests get their text so far and an error."""
        while True:
            self._table.fail_all(SERVER_ENDS)
            if not len(self._table):
                return ""
            yield f"{len(self._table)} requests are open"
