"""Whether answers stay the same while their requests move between two instances and the instances are killed.

    python -m tests.support.server.disturbing --model models/bundled --kills 10 --moves 100

One server with one instance answers all requests, undisturbed. Then one with two instances answers the same
ones in rounds, until there were as many kills and moves as were asked for: requests move at random, and an
instance is killed when every answer has begun to come. Each answer is compared with the undisturbed one. They
are drawn at a temperature, each with a seed of its own, in float32. Exits with 1 if one differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from tests.support.server.serving import Answer, Gapless, GrpcClient, wait_for
from tests.support.shuffle import SHUFFLE

SUBJECTS = ("a river", "two clocks", "the last bus", "my neighbour's dog", "an old map", "snow", "a letter")
LONGEST_S = 900.0  # for all answers of a round
PATIENCE_S = 600.0  # until a killed instance is back


def requests(count: int, num_tokens: int, temperature: float) -> list[dict[str, Any]]:
    """Each has a prompt and a seed of its own."""
    length = {"max_tokens": num_tokens, "min_tokens": num_tokens}
    return [
        {
            "text_input": f"Story {number}, about {SUBJECTS[number % len(SUBJECTS)]}. Once",
            "temperature": temperature,
            "seed": number + 1,
            **length,
        }
        for number in range(count)
    ]


def two_instances(**settings: Any) -> Gapless:
    """A server between whose instances requests move all the time."""
    cluster = {"cluster.instances": 2, "cluster.policy": SHUFFLE}
    served = Gapless(**cluster, **settings)
    wait_for(lambda: num_ready(served) == 2, PATIENCE_S)
    return served


def undisturbed(inputs: list[dict[str, Any]], **settings: Any) -> list[str]:
    """The texts that one instance gives."""
    with Gapless(**settings) as served:
        return finished(*ask(served, inputs))


def disturbed(served: Gapless, inputs: list[dict[str, Any]], kills: Sequence[int]) -> tuple[list[str], int]:
    """The texts, and how many of `kills` were done: numbers of instances, killed one after the other while
    most answers are open.
    """
    pids = {instance: served.instance_pid(instance) for instance in kills}
    losses, num_kills = num_losses(served), 0
    client, answers = ask(served, inputs)
    for instance in kills:
        client.read_until(lambda: all(answer.chunks > 2 for answer in answers), LONGEST_S)
        if sum(not answer.num_ends for answer in answers) < len(answers) / 2:
            break
        served.kill(pids[instance])
        num_kills += 1
        wait_for(lambda most=losses + num_kills: num_losses(served) >= most, PATIENCE_S)
        await_all(served)
        pids[instance] = served.instance_pid(instance)
        client.drain(0.5)
    return finished(client, answers), num_kills


def await_all(served: Gapless) -> None:
    """Waits until an instance that was killed is back and requests move again, if any are open."""
    wait_for(lambda: num_ready(served) == 2, PATIENCE_S)
    moves = num_moves(served)
    wait_for(lambda: num_moves(served) > moves or served.is_idle(), LONGEST_S)


def ask(served: Gapless, inputs: list[dict[str, Any]]) -> tuple[GrpcClient, list[Answer]]:
    client = served.grpc()
    return client, [client.ask(f"{number}", **each) for number, each in enumerate(inputs)]


def finished(client: GrpcClient, answers: list[Answer]) -> list[str]:
    client.finish(LONGEST_S)
    client.close()
    assert [answer.error for answer in answers] == [""] * len(answers)
    return [answer.text for answer in answers]


def num_ready(served: Gapless) -> float:
    return served.metrics()['gapless_instances{state="ready"}']


def num_losses(served: Gapless) -> float:
    return served.metrics()["gapless_instance_losses_total"]


def num_moves(served: Gapless) -> float:
    """That were done, with KV blocks or without."""
    return served.metrics().get('gapless_migrations_total{outcome="done",reason="shuffle"}', 0.0)


def differences(texts: list[str], expected: list[str]) -> list[str]:
    """For each answer that differs: where, and what stands there."""
    found = []
    for number, (text, wanted) in enumerate(zip(texts, expected, strict=True)):
        if text != wanted:
            pairs = enumerate(zip(text, wanted, strict=False))
            place = next((place for place, (one, other) in pairs if one != other), len(text))
            there = [each[place : place + 20] for each in (text, wanted)]
            found.append(f"answer {number}, character {place}: {there[0]!r} instead of {there[1]!r}")
    return found


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="disturbing", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="models/bundled", metavar="DIRECTORY")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--moves", type=int, default=100)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--temperature", type=float, default=0.9)
    parser.add_argument("--kills-a-round", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    asked = arguments(given)
    settings = {"model.directory": asked.model, "model.dtype": "float32"}
    settings |= dict(each.split("=", 1) for each in asked.set)
    inputs = requests(asked.streams, asked.tokens, asked.temperature)
    began_s = time.monotonic()
    expected = undisturbed(inputs, **settings)
    print(f"undisturbed: {len(expected)} answers after {time.monotonic() - began_s:.0f} s", flush=True)
    with two_instances(**settings) as served:
        num_kills, num_answers, wrong = 0, 0, []
        while num_kills < asked.kills or num_moves(served) < asked.moves:
            due = min(asked.kills_a_round, max(0, asked.kills - num_kills))
            texts, done = disturbed(served, inputs, [(num_kills + place) % 2 for place in range(due)])
            num_kills, num_answers = num_kills + done, num_answers + len(texts)
            found = differences(texts, expected)
            wrong += found
            said = f"{num_kills} kills, {num_moves(served):.0f} moves"
            said += f", {len(wrong)} of {num_answers} answers differ; {time.monotonic() - began_s:.0f} s"
            print("\n".join([*found, said]), flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
