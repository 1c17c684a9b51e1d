"""What the supervisor starts again, when it gives up, and how it ends what it started."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from anchored.pretrain import supervisor
from anchored.pretrain.supervisor import Supervision, start_processes, supervise

# Adds a line to the file named first; the rest is Python that may end it.
PROGRAM = "import os, signal, sys, time; open(sys.argv[1], 'a').write('started\\n');"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(supervisor, "_CRASH_GRACE_S", 0.2)
    monkeypatch.setattr(supervisor, "_POLL_S", 0.01)


@pytest.fixture
def starts(tmp_path):
    return tmp_path / "starts"


def program(starts, ending, *, num_processes=1):
    command = [sys.executable, "-c", f"{PROGRAM} {ending}", str(starts)]
    return lambda: start_processes(command, num_processes=num_processes)


def num_starts(starts):
    return len(starts.read_text().splitlines()) if starts.exists() else 0


def test_a_run_that_ends_well_is_started_once(starts):
    assert supervise(program(starts, "sys.exit(0)"), lambda: 0, Supervision()) == 0
    assert num_starts(starts) == 1


def test_without_restart_a_crash_is_the_end(starts):
    policy = Supervision(restart=False)
    assert supervise(program(starts, "sys.exit(7)"), lambda: 0, policy) == 7
    assert num_starts(starts) == 1


def test_crashes_without_a_new_checkpoint_are_given_up_after_the_limit(starts, caplog):
    caplog.set_level("WARNING")
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    assert supervise(program(starts, kill), lambda: 5, Supervision(max_crashes=3)) == 128 + 9
    assert num_starts(starts) == 3
    assert "status 137, its last checkpoint is of step 5: starting again" in caplog.messages[0]
    assert caplog.messages[-1].endswith("crash 3 without a new one, giving up")


def test_crashes_with_progress_go_on_to_the_end(starts):
    ending = f"sys.exit(0 if len(open({str(starts)!r}).readlines()) == 6 else 1)"
    policy = Supervision(max_crashes=2)
    assert supervise(program(starts, ending), lambda: num_starts(starts), policy) == 0
    assert num_starts(starts) == 6


def test_when_one_process_is_gone_the_others_are_ended_too(starts):
    # Not before all have begun: the others are given little time then.
    waiting = "any(time.sleep(.01) for _ in iter(lambda: len(open(sys.argv[1]).readlines()), 3))"
    ending = f"{waiting}; sys.exit(3) if os.environ['RANK'] == '1' else time.sleep(600)"
    begin = program(starts, ending, num_processes=3)
    policy = Supervision(restart=False)
    assert supervise(begin, lambda: 0, policy) == 3
    assert num_starts(starts) == 3


@pytest.mark.parametrize("is_patient", [True, False])
def test_a_signal_is_passed_on_and_waited_for_but_not_for_ever(starts, is_patient):
    ending = (
        "signal.signal(signal.SIGTERM, lambda *_: "
        "(time.sleep(0.5), open(sys.argv[1], 'a').write('saved\\n'),"
        f"sys.exit(0)) if {is_patient} else None); print(flush=True); time.sleep(600)"
    )
    begun = []

    def begin():
        command = [sys.executable, "-c", f"{PROGRAM} {ending}", str(starts)]
        begun.append(subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE))
        begun[0].stdout.readline()  # its handler stands
        return begun

    def send():
        while not begun:
            time.sleep(0.01)
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=send)
    sender.start()
    seconds = 60.0 if is_patient else 0.3
    status = supervise(begin, lambda: 0, Supervision(shutdown_seconds=seconds))
    sender.join()
    begun[0].stdout.close()
    assert status == (0 if is_patient else 128 + 9)
    assert starts.read_text() == ("started\nsaved\n" if is_patient else "started\n")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
