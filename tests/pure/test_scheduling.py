"""The slot scheduler over the toy engine: whatever happens around a
request, its tokens are those of an undisturbed run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backends.nouns.request import Finish, ModelLimits, Request, Sampling
from python_backends.nouns.step import Admit, GatheredOutput, Release, StepOutput, StepPlan
from python_backends.scheduling.policies.fcfs import reserve_max_tokens
from python_backends.scheduling.self_planned import SelfPlannedScheduler
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.scheduling.state.allocator import Allocator
from python_backends.scheduling.state.sequence import Sequence
from python_backends.scheduling.state.view import View
from python_backends.settings import SchedulingSettings, SettingsError
from tests.support.scheduling import VOCAB, Instance, answer, request, write_vocabulary
from tests.support.toy_answers import toy_answer
from tests.support.toy_engine import toy_next

NO_TOKENS = np.zeros(0, np.int32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vocabulary(tmp_path_factory.mktemp("toy"))


def test_the_toy_engine_can_be_worked_out_by_hand() -> None:
    # 1·3 + 2·5 + 7 = 20, then 20 + 3·20 = 80
    assert toy_answer(np.array([3, 5], np.int32), Sampling(max_tokens=2), VOCAB) == [20, 80]
    assert (
        toy_next(
            np.array([3, 5], np.int32), Sampling(max_tokens=9, min_tokens=1, stop_ids=(20, 21)), 0, VOCAB
        )
        == 22
    )


def test_one_request_gets_its_answer_and_ends_by_length(model: Path) -> None:
    instance = Instance(model)
    ask = request(1, [3, 5, 8])
    instance.submit(ask)
    instance.run()
    assert instance.answers[1] == answer(ask)
    assert instance.finishes[1] is Finish.LENGTH


def test_a_stop_id_ends_the_answer_but_not_before_min_tokens(model: Path) -> None:
    plain = answer(request(0, [3, 5, 8]))
    stop = plain[3]
    asks = [request(1, [3, 5, 8], stop_ids=(stop,)), request(2, [3, 5, 8], stop_ids=(stop,), min_tokens=6)]
    instance = Instance(model, depth=2)
    for ask in asks:
        instance.submit(ask)
    instance.run()
    assert instance.answers[1] == plain[:4]
    assert instance.finishes[1] is Finish.STOP
    assert instance.answers[2] == answer(asks[1])
    assert len(instance.answers[2]) >= 6


def test_a_new_request_waits_at_most_one_step_for_a_free_slot(model: Path) -> None:
    instance = Instance(model, slots=2)
    instance.submit(request(1, [1], max_tokens=30))
    for _ in range(5):
        instance.turn()
    instance.submit(request(2, [2]))
    instance.turn()
    assert len(instance.answers[2]) == 1


def test_a_cancelled_request_gives_slot_and_blocks_back_before_the_next_step(model: Path) -> None:
    instance = Instance(model, slots=1)
    instance.submit(request(1, [1] * 9, max_tokens=40))
    instance.submit(request(2, [2]))
    for _ in range(3):
        instance.turn()
    assert instance.answers[2] == []
    assert instance.scheduler.cancel(1)
    assert not instance.scheduler.cancel(1)
    instance.turn()
    assert len(instance.answers[2]) == 1
    instance.run()
    assert instance.scheduler.blocks.num_used == 0


def test_the_second_turn_of_a_chat_computes_its_new_suffix_and_at_most_one_block(model: Path) -> None:
    instance = Instance(model)
    first = request(1, list(range(10, 30)))
    instance.submit(first)
    instance.run()
    turn_2 = [*first.prompt.tolist(), *instance.answers[1], 5, 6, 7]
    instance.scheduler.take_started()
    second = request(2, turn_2)
    instance.submit(second)
    instance.run()
    known = len(first.prompt) + len(instance.answers[1])
    assert (
        instance.scheduler.take_started()[0].num_prefix_hit_tokens
        > known - instance.engine.limits.block_tokens - 1
    )
    assert instance.answers[2] == answer(second)


def test_when_blocks_run_out_the_youngest_is_evicted_and_every_answer_stays_the_same(model: Path) -> None:
    instance = Instance(model, slots=4, blocks=30, reserve=lambda sequence: 0)
    asks = [request(i, [i + 1] * 8, max_tokens=60) for i in range(4)]
    for ask in asks:
        instance.submit(ask)
    instance.run()
    assert instance.scheduler.num_evictions > 0
    assert all(instance.answers[ask.request_id] == answer(ask) for ask in asks)


def test_reserving_max_tokens_never_evicts(model: Path) -> None:
    instance = Instance(model, slots=4, blocks=30)
    asks = [request(i, [i + 1] * 8, max_tokens=60) for i in range(6)]
    for ask in asks:
        instance.submit(ask)
    instance.run()
    assert instance.scheduler.num_evictions == 0


def test_a_restarted_request_goes_on_behind_what_was_delivered(model: Path) -> None:
    ask = request(1, [3, 5, 8], temperature=1.0, seed=12345)
    instance = Instance(model)
    instance.submit(ask, delivered=tuple(answer(ask)[:7]))
    instance.run()
    assert instance.answers[1] == answer(ask)


def test_a_long_prompt_does_not_stall_decodes(model: Path) -> None:
    instance = Instance(model, token_budget=8)
    instance.submit(request(1, [1], max_tokens=60))
    instance.turn()
    instance.submit(request(2, [2] * 60))
    for _ in range(5):
        before = len(instance.answers[1])
        instance.turn()
        assert len(instance.answers[1]) == before + 1
    assert instance.answers[2] == []


@pytest.mark.parametrize(("policy", "passes"), [("fcfs", False), ("past_future", False), ("ours", True)])
def test_a_short_prompt_passes_long_ones_that_have_slots_if_the_policy_predicts(
    model: Path, policy: str, passes: bool
) -> None:
    instance = Instance(model, policy=policy, token_budget=8)
    asks = [request(number, [number] * length) for number, length in enumerate((60, 60, 7))]
    for ask in asks:
        instance.submit(ask)
        instance.now_s += 0.1
    instance.now_s += 1.0
    instance.turn()
    assert bool(instance.answers[2]) == passes
    instance.run()
    assert all(instance.answers[ask.request_id] == answer(ask) for ask in asks)


def test_a_long_prompt_that_has_waited_for_long_goes_before_short_ones(model: Path) -> None:
    """Each step has time for one of the short prompts, and one comes with each."""
    instance = Instance(model, policy="ours", token_budget=8)
    instance.submit(request(0, [1] * 60))
    turns = 0
    while not instance.answers[0]:
        turns += 1
        instance.submit(request(turns, [turns] * 8, max_tokens=1))
        instance.now_s += 1.0
        instance.turn()
    assert 8 <= turns <= 30
    instance.run()


@pytest.mark.parametrize("policy", ["fcfs", "past_future", "ours"])
def test_a_prompt_that_has_a_slot_is_not_passed_over_for_ever(model: Path, policy: str) -> None:
    """Each step has time for one of the urgent prompts, and one comes with each."""
    instance = Instance(model, policy=policy, token_budget=8)
    instance.submit(request(0, [96] * 60))
    turns = 0
    while not instance.answers[0] and turns < 60:
        turns += 1
        instance.submit(request(turns, [turns] * 8, priority=1, max_tokens=1))
        instance.now_s += 1.0
        instance.turn()
    assert 10 + 60 / 8 < turns <= 30, "those of larger priority go first for ten seconds"
    instance.run()


@pytest.mark.parametrize(
    ("row_multiple", "step_s", "expected"),
    [(32, 0.010, 63), (32, 0.120, 31), (32, 0.200, 95), (8, 0.120, 55), (8, 0.145, 71)],
)
def test_beside_decodes_a_prompt_is_cut_to_what_a_step_may_take(
    model: Path, row_multiple: int, step_s: float, expected: int
) -> None:
    """2 ms a token of a prompt, 150 ms a step or twice what it takes without
    one: a multiple of 32 or 8 rows, 1 of them decodes.
    """
    instance = Instance(model, row_multiple=row_multiple)
    instance.submit(request(1, [1], max_tokens=60))
    instance.turn()
    instance.scheduler.outlook.step_time.coefficients = [step_s, 0.0, 0.0, 0.002, 0.0]
    instance.submit(request(2, [2] * 101))
    instance.turn()
    assert instance.scheduler.slots.computed[1] == expected


def test_where_none_decodes_a_step_takes_two_seconds_at_most(model: Path) -> None:
    """50 ms a token, as a large model on a slow processor: 40 tokens, cut to 32 rows."""
    instance = Instance(model)
    instance.scheduler.outlook.step_time.coefficients = [0.010, 0.0, 0.0, 0.050, 0.0]
    instance.submit(request(2, [2] * 101))
    instance.turn()
    assert instance.scheduler.slots.computed[0] == 32


def test_a_chunk_is_the_shorter_the_farther_it_lies_in_its_prompt(model: Path) -> None:
    """A step takes 4 ms, may take 150 ms, and 0.1 ms for every token that one of a chunk attends to. From 0
    on there is time for 54 tokens: with the row that decodes they are cut to 32 rows. From 31 on there is
    time for 31, from 62 on for 20: the least of a first chunk, 16, is taken. Then there is time for less.
    """
    instance = Instance(model)
    instance.submit(request(1, [1], max_tokens=60))
    instance.turn()
    instance.scheduler.outlook.step_time.coefficients = [0.004, 0.0, 0.0, 0.0, 0.0001]
    instance.submit(request(2, [2] * 110))
    ends = []
    for _ in range(4):
        instance.turn()
        ends.append(int(instance.scheduler.slots.computed[1]))
    assert ends == [31, 62, 78, 94]


def test_several_prompts_share_what_a_step_may_take(model: Path) -> None:
    """2 ms a token, 140 ms left: 40 tokens and 30 of the next one, which
    with the row that decodes are cut to 64 rows.
    """
    instance = Instance(model)
    instance.submit(request(1, [1], max_tokens=60))
    instance.turn()
    instance.scheduler.outlook.step_time.coefficients = [0.010, 0.0, 0.0, 0.002, 0.0]
    for number in (2, 3, 4):
        instance.submit(request(number, [number] * 40))
    instance.turn()
    assert instance.scheduler.slots.computed[1:4].tolist() == [40, 23, 0]


def test_a_prompt_that_keeps_nobody_waiting_is_computed_at_once(model: Path) -> None:
    instance = Instance(model)
    instance.scheduler.outlook.step_time.coefficients = [0.010, 0.0, 0.0, 0.002, 0.0]
    instance.submit(request(1, [2] * 100))
    instance.turn()
    assert len(instance.answers[1]) == 1


def test_orca_reserves_max_tokens_and_its_head_blocks_all_behind_it(model: Path) -> None:
    """30 blocks of 4 hold 120 tokens: 2 × (5 + 40) fit, the third of that
    size waits, and so does the tiny one behind it.
    """
    instance = Instance(model, blocks=30, policy="orca")
    for number in range(3):
        instance.submit(request(number, [number + 1] * 5, max_tokens=40))
    instance.submit(request(9, [9], max_tokens=2))
    instance.turn()
    assert [len(instance.answers[number]) for number in (0, 1, 2, 9)] == [1, 1, 0, 0]
    instance.run()
    assert len(instance.answers[9]) == 2


def test_a_larger_priority_gets_the_next_slot_but_nobody_is_passed_over_for_ever(model: Path) -> None:
    """One slot; urgent requests never stop coming. The patient one gets its turn
    ten seconds after the first was put before it.
    """
    instance = Instance(model, slots=1)
    instance.submit(request(0, [1], max_tokens=2))
    instance.turn()
    instance.submit(request(1, [2], max_tokens=2))
    for number in range(2, 40):
        instance.submit(request(number, [3], priority=1, max_tokens=2))
        instance.turn()
        instance.turn()
        if 1 in instance.finishes:
            break
        instance.now_s += 1.0
    assert instance.now_s == 11.0
    assert sorted(instance.finishes) == [0, 1, *range(2, 12)]


def test_orca_goes_by_arrival_whatever_the_priority(model: Path) -> None:
    instance = Instance(model, slots=1, policy="orca")
    for number in range(3):
        instance.submit(request(number, [number], priority=number, max_tokens=2))
    instance.run()
    assert list(instance.finishes) == [0, 1, 2]


def test_when_blocks_run_out_the_least_priority_makes_way_first(model: Path) -> None:
    instance = Instance(model, slots=2, blocks=24, reserve=lambda sequence: 0)
    asks = [request(0, [1] * 8, max_tokens=70), request(1, [2] * 8, priority=1, max_tokens=70)]
    for ask in asks:
        instance.submit(ask)
    instance.run()
    assert instance.scheduler.num_evictions > 0
    assert list(instance.finishes) == [1, 0]
    assert all(instance.answers[ask.request_id] == answer(ask) for ask in asks)


def test_a_request_that_does_not_fit_after_all_is_refused_and_costs_nobody_else_anything(model: Path) -> None:
    instance = Instance(model)
    ask = request(1, [3, 5, 8])
    instance.submit(ask)
    with pytest.raises(ValueError, match="doesn't fit into 120"):
        instance.submit(request(2, [1] * 120))
    instance.run()
    assert instance.answers[1] == answer(ask)


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": np.array([1, VOCAB], np.int32)},
        {"prompt": np.array([-1], np.int32)},
        {"sampling": Sampling(5, bad_words=((1, 2_000_000_000),))},
        {"sampling": Sampling(5, logit_bias=((97, 1.0),))},
    ],
)
def test_a_token_id_outside_the_vocabulary_is_refused_and_others_go_on(
    model: Path, wrong: dict[str, Any]
) -> None:
    instance = Instance(model)
    good = request(1, [3, 5, 8])
    instance.submit(good)
    with pytest.raises(ValueError, match="must be between 0 and 96"):
        instance.submit(request(2, [1]).changed(**wrong))
    with pytest.raises(ValueError, match="answer so far"):
        instance.submit(request(3, [1]), delivered=(VOCAB,))
    instance.run()
    assert instance.answers[1] == answer(good)


def test_a_row_without_a_token_fails_alone_and_leaves_no_prefix(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its logits were no numbers, and what it left in its blocks may be none either."""
    instance = Instance(model, depth=2)
    ill, well = request(1, [9] * 13), request(2, [5] * 13)
    collect, ill_slot = instance.engine.collect, 0

    def without_a_token() -> StepOutput:
        output = collect()
        finishes = output.finishes.copy()
        if len(finishes) and instance.steps > 2:
            finishes[ill_slot] = Finish.ERROR
        return replace(output, finishes=finishes)

    instance.submit(ill)
    instance.submit(well)
    monkeypatch.setattr(instance.engine, "collect", without_a_token)
    while not (failed := instance.scheduler.take_failed()):
        instance.turn()
    monkeypatch.undo()
    instance.run()
    assert [(each.request_id, "not finite" in each.error) for each in failed] == [(1, True)]
    assert instance.answers[2] == answer(well)
    for again in (ill.changed(request_id=3), well.changed(request_id=4)):
        instance.submit(again)
    instance.run()
    hits = [started.num_prefix_hit_tokens for started in instance.scheduler.take_started()[2:]]
    assert hits == [0, 12]
    assert instance.answers[3] == answer(ill)


def test_a_limit_below_the_engines_own_ends_a_sequence_all_the_same(model: Path) -> None:
    instance = Instance(model)
    instance.scheduler = SlotScheduler(instance.engine.limits.changed(max_model_tokens=12))
    ask = request(1, [3, 5, 8])
    instance.submit(ask)
    instance.run()
    assert instance.answers[1] == answer(ask)[:9]
    assert instance.finishes[1] is Finish.LENGTH


def test_limits_are_refused_at_construction(model: Path) -> None:
    limits = Instance(model).engine.limits.changed(num_slots=2)
    with pytest.raises(SettingsError, match=r"scheduling\.policy = .unknown."):
        SlotScheduler(limits, settings=SchedulingSettings("unknown"))


@pytest.mark.parametrize("policy", ["fcfs", "orca", "ours"])
@pytest.mark.parametrize(("slots", "blocks"), [(2, 64), (4, 16)])
def test_what_an_engine_that_plans_its_own_steps_has_not_released_is_not_given_again(
    policy: str, slots: int, blocks: int
) -> None:
    """Two requests have both slots, or all but two blocks, and one is cancelled."""
    limits = ModelLimits(120, VOCAB, slots, blocks, block_tokens=4)
    scheduler = SelfPlannedScheduler(limits, 8, SchedulingSettings(policy), reserve_max_tokens)
    for number in range(4):
        scheduler.submit(request(number, [number] * 8), NO_TOKENS)
    admitted = []
    for released in [(), (), (Release(0, 1),)]:
        plan = scheduler.plan()
        assert plan is not None
        admitted.append([each.slot for each in plan.operations if isinstance(each, Admit)])
        scheduler.cancel(0)
        no_tokens = GatheredOutput(
            plan.number,
            NO_TOKENS,
            np.zeros(0, np.uint8),
            slots=NO_TOKENS,
            slot_generations=NO_TOKENS,
            released=released,
        )
        scheduler.apply(plan, no_tokens)
        scheduler.check_integrity()
    plan = scheduler.plan()
    assert plan is not None
    assert admitted == [[0, 1], [], []]
    assert [each.slot for each in plan.operations if isinstance(each, Admit)] == [0]


def test_a_prefix_whose_first_block_nobody_holds_is_reckoned_as_if_none_of_it_were_found() -> None:
    """0 and 1 began alike and computed it each, so the second block of 1 is found behind the first of 0,
    which nobody holds any more. Before 3 is seated that one is taken away, and then neither is found.
    """
    allocator = Allocator(
        ModelLimits(120, VOCAB, num_slots=4, num_blocks=10, block_tokens=4), lambda sequence: 0
    )
    prompts = [[7] * 4 + [1], [7] * 4 + [8] * 4 + [1], [5] * 5, [7] * 4 + [8] * 4 + [2]]
    sequences = [
        Sequence(request(number, prompt), NO_TOKENS, number, 0) for number, prompt in enumerate(prompts)
    ]
    for sequence in sequences[:2]:
        allocator.seat(sequence)
    for sequence in sequences[:2]:
        allocator.slots.computed[sequence.slot] = len(sequence.tokens)
        allocator.publish_prefill(sequence.slot, len(sequence.tokens))
    allocator.unseat(sequences[0])
    assert allocator.seating(sequences[3]) == (3, 0, 0)
    taken = allocator.blocks.allocate(allocator.blocks.num_available)
    allocator.blocks.drop(taken)
    assert allocator.seating(sequences[3]) == (3, 0, 0)
    assert allocator.view().blocks_needed(sequences[3]) == 3


PREFIX = [7, 5, 3] * 16  # 12 blocks


def burst(count: int, own: int = 5) -> list[Request]:
    """Requests that begin alike and end as each likes."""
    return [request(number, PREFIX + [number] * own) for number in range(count)]


def computed(instance: Instance) -> int:
    """Runs it to the end; how many prompt tokens the engine computed."""
    launch, counts = instance.engine.launch, []

    def counted(plan: StepPlan) -> None:
        counts.append(len(plan.tokens))
        launch(plan)

    instance.engine.launch = counted  # type: ignore[method-assign]
    instance.run()
    return sum(counts)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("token_budget", [9, 30, 256])
def test_a_prefix_that_many_bring_at_once_is_computed_once(
    model: Path, depth: int, token_budget: int
) -> None:
    """Whether it takes one step or many, and however far plans run ahead."""
    instance, asks = Instance(model, depth, slots=8, blocks=256, token_budget=token_budget), burst(8)
    for ask in asks:
        instance.submit(ask)
    assert computed(instance) == len(PREFIX) + 8 * 5
    assert all(instance.answers[ask.request_id] == answer(ask) for ask in asks)
    hits = [started.num_prefix_hit_tokens for started in instance.scheduler.take_started()]
    assert sum(hits) == 7 * len(PREFIX), "what is found after the start is told as well"


def test_blocks_that_were_kept_for_a_prefix_are_free_once_another_has_computed_it(model: Path) -> None:
    instance = Instance(model, slots=8, blocks=256)
    for ask in burst(8):
        instance.submit(ask)
    instance.turn()
    assert instance.scheduler.blocks.num_used > 8 * 12
    instance.turn()
    own = sum(len(sequence.blocks) - 12 for sequence in instance.scheduler.slots.running())
    assert instance.scheduler.blocks.num_used == 12 + own


@pytest.mark.parametrize("turns", [1, 2, 3, 4])
def test_when_the_one_that_computes_a_common_prefix_leaves_another_goes_on_from_there(
    model: Path, turns: int
) -> None:
    instance, asks = Instance(model, depth=2, slots=4, token_budget=16), burst(4)
    for ask in asks:
        instance.submit(ask)
    for _ in range(turns):
        instance.turn()
    assert instance.scheduler.cancel(0)
    instance.run()
    assert all(instance.answers[ask.request_id] == answer(ask) for ask in asks[1:])


def test_a_request_that_came_first_and_is_seated_last_helps_the_one_that_computes_its_prefix_already(
    model: Path,
) -> None:
    """2 has computed a part of the prefix, the last block not to its end, when 1 is seated and goes first."""
    instance = Instance(model, slots=2, blocks=64, token_budget=8)
    asks = [
        request(0, [9], max_tokens=3),
        request(1, PREFIX + [1] * 5, max_tokens=9),
        request(2, PREFIX + [2] * 5, priority=1),
    ]
    for ask in asks:
        instance.submit(ask)
    assert computed(instance) <= 1 + len(PREFIX) + 2 * 5 + 3
    assert all(instance.answers[ask.request_id] == answer(ask) for ask in asks)


def test_an_evicted_request_finds_its_prefix_again(model: Path) -> None:
    """Memory for two of three: whoever has made way shares the prefix
    with those that run when it comes back.
    """
    instance = Instance(model, slots=3, blocks=40, reserve=lambda sequence: 0)
    asks = [request(number, PREFIX + [number] * 5, max_tokens=50) for number in range(3)]
    for ask in asks:
        instance.submit(ask)
    tokens = computed(instance)
    assert instance.scheduler.num_evictions > 0
    assert tokens < 2 * len(PREFIX) + instance.scheduler.num_evictions * 60
    assert all(instance.answers[ask.request_id] == answer(ask) for ask in asks)


def test_who_waited_only_for_one_that_is_cancelled_is_admitted_with_the_next_plan(model: Path) -> None:
    """30 blocks of 4, 95 % of which may be used: 0 runs, 1 is too large beside it
    and overdue, so 2 and all later ones wait for 1.
    """
    instance = Instance(model, slots=8, blocks=30, policy="ours")
    instance.submit(request(0, [1] * 8, max_tokens=60))
    instance.turn()
    instance.submit(request(1, [2] * 40, max_tokens=60))
    instance.submit(request(2, [3] * 4, max_tokens=4))
    instance.turn()
    assert instance.answers[2], "it does not fit, so it is passed by at first"
    instance.now_s += 11.0
    instance.submit(request(3, [3] * 4, max_tokens=4))
    instance.turn()
    instance.turn()
    assert not instance.answers[3]
    assert instance.scheduler.cancel(1)
    instance.turn()
    assert instance.answers[3]


@pytest.mark.parametrize("policy", ["fcfs", "ours"])
def test_every_policy_sees_which_sequences_are_overdue(model: Path, policy: str) -> None:
    """Also one that does not look ahead: it was told that all of them are."""
    instance = Instance(model, policy=policy)
    seen: list[bool] = []

    def select(waiting: Iterable[Sequence], view: View) -> list[Sequence]:
        seen.extend(view.is_overdue(sequence) for sequence in waiting)
        return []

    instance.scheduler._admission.follow(replace(instance.scheduler.policy, select=select))
    instance.submit(request(1, [3, 5, 8]))
    instance.turn()
    assert seen == [False]


@pytest.mark.parametrize(("policy", "first"), [("fcfs", 2), ("orca", 1)])
def test_the_prompt_of_highest_priority_is_computed_first(model: Path, policy: str, first: int) -> None:
    """Unless the policy knows no priorities. Of 200 tokens of prompts a step computes 64."""
    instance = Instance(model, policy=policy, token_budget=64)
    scheduler = instance.scheduler
    for number, priority in ((1, 0), (2, 1)):
        ids = np.full(100, number, np.int32)
        scheduler.submit(Request(number, ids, Sampling(max_tokens=4), priority=priority), NO_TOKENS)
    plan = scheduler.plan()
    assert plan is not None
    assert scheduler.load().num_prefill_tokens == 200 - len(plan.tokens)
    assert scheduler.slots.request_ids[plan.slots[0]] == first


def test_what_waits_is_in_the_load(model: Path) -> None:
    instance = Instance(model, slots=1)
    for number, length in ((1, 5), (2, 9), (3, 16)):
        instance.submit(request(number, [number] * length, priority=number - 2))
    instance.turn()
    load = instance.scheduler.load()
    assert (load.num_waiting, load.num_high_priority, load.waiting_blocks, load.head_blocks) == (2, 1, 5, 3)
    instance.run()
    load = instance.scheduler.load()
    assert (load.num_high_priority, load.waiting_blocks, load.head_blocks) == (0, 0, 0)
