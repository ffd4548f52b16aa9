"""Where other programs use the processors, torch computes with as many threads as make steps fastest."""

from __future__ import annotations

from python_backends.engine.torch.threads import LOOK_S, MOST_RETRY_S, Threads

QUIET_S = {1: 0.016, 2: 0.010}  # a step, by threads
BUSY_S = {1: 0.017, 2: 0.045}


class Machine:
    """Two processors, on which another program is `busy` or not."""

    def __init__(self) -> None:
        self.now_s = self.waited_s = 0.0
        self.busy = False
        self.used = 2  # threads that compute
        self.changes: list[int] = []
        self.threads = Threads(2, self._change, lambda: self.waited_s)

    def run(self, seconds: float) -> list[int]:
        """Steps for so long; the number of threads of each."""
        used, until_s = [], self.now_s + seconds
        while self.now_s < until_s:
            took_s = (BUSY_S if self.busy else QUIET_S)[self.used]
            self.now_s += took_s
            self.waited_s += took_s / 2 if self.busy and self.used == 2 else 0.0
            used.append(self.used)
            self.threads.step(took_s, self.now_s)
        return used

    def _change(self, count: int) -> None:
        self.used = count
        self.changes.append(count)


def test_on_a_quiet_machine_nothing_is_tried() -> None:
    machine = Machine()
    assert set(machine.run(300.0)) == {2}
    assert machine.changes == []


def test_one_thread_while_another_program_is_busy_and_both_again_afterwards() -> None:
    machine = Machine()
    machine.run(10.0)
    machine.busy = True
    machine.run(5.0)
    assert machine.threads.count == machine.used == 1
    used = machine.run(300.0)
    assert used.count(2) < 0.02 * len(used), "more threads are tried now and then"
    machine.busy = False
    machine.run(2 * MOST_RETRY_S)
    assert machine.threads.count == machine.used == 2


def test_waiting_alone_changes_nothing_where_fewer_threads_are_slower() -> None:
    """As where the clients of this server use the processors between steps."""
    machine = Machine()
    for _ in range(200):
        machine.waited_s += 0.5 * LOOK_S
        machine.run(LOOK_S)
    assert machine.threads.count == machine.used == 2
    assert machine.changes.count(1) < 60


def test_a_single_thread_stays_one() -> None:
    changes: list[int] = []
    threads, now_s = Threads(1, changes.append, lambda: now_s), 0.0
    for _ in range(2000):
        now_s += 0.02
        threads.step(0.02, now_s)
    assert not changes
