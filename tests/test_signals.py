"""Signals ask; a person who insists is obeyed; a job of several processes stops in one place."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from attnlab.signals import STOP_SIGNALS, StopFlag

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_stop_signal_sets_the_flag_and_the_exit_code(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopFlag() as stop:
        assert not stop()
        assert stop.exit_code == 0
        os.kill(os.getpid(), number)
        assert stop()
        assert stop.exit_code == 128 + number
    assert signal.getsignal(number) is before


def test_schedulers_may_repeat_themselves_and_the_first_signal_counts() -> None:
    with StopFlag() as stop:
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM, signal.SIGUSR2):
            os.kill(os.getpid(), number)
        assert stop.exit_code == 128 + signal.SIGUSR1


def _send(*numbers: signal.Signals) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def test_ctrl_c_after_another_signal_interrupts_at_once() -> None:
    with StopFlag(), pytest.raises(KeyboardInterrupt):
        _send(signal.SIGTERM, signal.SIGINT)


def test_a_second_ctrl_c_ends_a_process_that_python_cannot_interrupt() -> None:
    """As in a compilation of minutes: one call into C in which no handler of Python's gets a turn."""
    code = """
        import hashlib
        from attnlab import signals
        signals.PATIENCE = 0.2
        with signals.StopFlag():
            print("in", flush=True)
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    process.stdout.close()


class Job:
    """Orbax's answer in a job of several processes: all stop at the `at`-th question."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.asked: list[int] = []

    def reached_preemption(self, asked: int) -> bool:
        self.asked.append(asked)
        return asked == self.at  # only there, and not after it


def test_processes_of_a_job_stop_where_all_do_and_not_where_the_signal_came() -> None:
    job, terms = Job(at=5), []
    before = signal.signal(signal.SIGTERM, lambda *_: terms.append(1))  # jax's own, in its place
    try:
        with StopFlag(job.reached_preemption) as stop:
            answers = [stop(), stop()]
            os.kill(os.getpid(), signal.SIGUSR1)
            answers += [stop() for _ in range(5)]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert answers == [False] * 4 + [True] * 3
    assert job.asked == [1, 2, 3, 4, 5], (
        "the same numbers in all processes, and none after the answer"
    )
    assert terms == [1], "USR1 became the TERM that jax listens to"
    assert stop.exit_code == 128 + signal.SIGUSR1


def test_a_process_that_got_no_signal_itself_stops_with_the_others() -> None:
    with StopFlag(Job(at=1).reached_preemption) as stop:
        assert stop()
    assert stop.exit_code == 128 + signal.SIGTERM


@pytest.mark.slow
def test_two_jax_processes_stop_at_the_same_question_when_one_of_them_gets_sigterm() -> None:
    code = """
        import sys, time, jax
        port, rank = sys.argv[1:]
        jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(rank))
        from attnlab.checkpoints import reached_preemption
        from attnlab.signals import StopFlag
        with StopFlag(reached_preemption) as stop:
            print("ready", flush=True)
            asked = 1
            while not stop():
                asked += 1
                time.sleep(0.02 * (1 + int(rank)))
        print(asked, stop.exit_code, flush=True)
    """
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), port, rank],
            cwd=ROOT, env={**os.environ, "JAX_PLATFORMS": "cpu"}, stdout=subprocess.PIPE, text=True,
        )
        for rank in "01"
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    processes[1].send_signal(signal.SIGTERM)
    outputs = [process.communicate(timeout=120)[0].split() for process in processes]
    assert outputs[0] == outputs[1]
    assert outputs[0][1] == "143"
