"""Carries out the orders that come on the control socket.

Called by the streams thread alone.
"""

from __future__ import annotations

import time
from typing import Any

from python_backends.cluster.cluster import Cluster
from python_backends.nouns.order import AUTO, Order, Progress, RefusedOrderError, next_answer
from python_backends.nouns.request import Finish
from python_backends.settings import ClusterSettings
from python_backends.streams.forecast import Forecast
from python_backends.streams.stream import Stream
from python_backends.streams.table import SERVER_ENDS, StreamTable
from python_backends.triton_models.instance_watch import InstanceWatch
from python_backends.watching.metrics import Metrics
from python_backends.wires.control import Asked, ControlEnd

CHECK_EVERY_S = 0.1  # how far an order is
MOST_REQUESTS = 50  # that the status names


class Orders:
    """Owns the orders that are being carried out."""

    def __init__(
        self, settings: ClusterSettings, table: StreamTable, instances: InstanceWatch, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._table = table
        self._instances = instances
        self._loads = instances.loads
        self._metrics = metrics
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
            return self._status(order.client_id)
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
            bounds = f"{max(1, settings.min_instances)} to {settings.max_instances}"
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

    def _status(self, client_id: str) -> dict[str, Any]:
        reasons = self._loads.wait_reasons
        instances = [self._loads.status_of(number) for number in sorted(self._loads.wanted)]
        outcomes = self._metrics.sums("gapless_requests_total", "outcome")
        num_ended = sum(outcomes.get(finish.reason, 0) for finish in (Finish.STOP, Finish.LENGTH))
        num_generated = self._metrics.counters["gapless_generated_tokens_total", ()]
        forecast = Forecast(
            self._table.streams,
            self._loads.num_slots,
            max((each["step_s"] for each in instances), default=0.0),
            num_generated / num_ended if num_ended else 0.0,
        )
        streams = [stream for stream in self._table.streams if client_id in ("", stream.request.client_id)]
        return {
            "policy": self._settings.policy if self._instances.cluster is not None else "",
            "ready": any(each["state"] == "ready" for each in instances),
            "open": len(self._table),
            "waiting": {reason: count for reason, count in self._table.waiting(reasons).items() if count},
            "drain_s": round(forecast.drain_s(), 3),
            "instances": instances,
            "migrations": self._metrics.sums("gapless_migrations_total", "outcome"),
            "requests": self._requests(streams[:MOST_REQUESTS], forecast),  # those that came first
        }

    def _requests(self, streams: list[Stream], forecast: Forecast) -> list[dict[str, Any]]:
        reasons, now_ns, places = self._loads.wait_reasons, time.monotonic_ns(), forecast.places()
        return [
            {
                "request": stream.request_id,
                "id": stream.request.client_id,
                "instance": stream.instance,
                "prompt_tokens": len(stream.request.prompt),
                "tokens": len(stream.tokens),
                "predicted_tokens": round(forecast.length(stream)),
                "age_s": round((now_ns - stream.request.arrival_ns) / 1e9, 1),
                "waits_for": self._table.submissions.wait_reason(stream, reasons) or "",
                "place": places.get(stream.request_id, 0),  # 0: it has a slot
            }
            for stream in streams
        ]
