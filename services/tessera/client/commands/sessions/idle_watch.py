"""
The first process of a notebook's pod: it runs the server, and stops it once nobody has used it for a while.

Not imported: the source is an argument of the pod's command, and any Python from 3.7 on runs it with its own library
alone. In: port and command of the server, the file of its token, and `TESSERA_SESSION_…` of the pod. Out: a warning on
standard error and in a file, then a last word in the termination message (`tessera.domain.last_words`).

In use is a notebook with a busy kernel, with a kernel or a terminal that did something lately, or with a program that
uses a tenth of a core. A server that does not answer is never idle.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from typing import Any, Collection, Sequence
from urllib.error import HTTPError
from urllib.request import Request, urlopen

POLL_SECONDS = 30.0
GRACE_SECONDS = 15.0
STOPPED = 75
BUSY_CORES = 0.1
WARNING_FILE = "/tmp/tessera-idle-warning"
LAST_WORD_FILE = "/dev/termination-log"


def ask(port: int, path: str) -> Any:
    """The list that the server has at this path; nothing where it has no such path. Raises OSError and ValueError."""
    with open(os.environ["JUPYTER_TOKEN_FILE"]) as file:
        token = file.read().strip()
    below = os.environ.get("TESSERA_SESSION_PATH", "/")
    url = "http://127.0.0.1:%d%sapi/%s?no_track_activity=1" % (port, below, path)
    try:
        with urlopen(Request(url, headers={"Authorization": "token " + token}), timeout=10) as answer:
            return json.load(answer)
    except HTTPError as error:
        if error.code == 404:
            return []
        raise


def moment(said: str) -> float:
    """Seconds since the epoch of a time such as 2026-11-29T20:15:00.123456Z."""
    return datetime.strptime(said[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp()


def last_used(port: int, now: float) -> float:
    """Time when a kernel or terminal did something last, in seconds since the epoch: `now` while a kernel is busy."""
    kernels = ask(port, "kernels")
    if any(kernel.get("execution_state") == "busy" for kernel in kernels):
        return now
    said = [each.get("last_activity") for each in kernels + ask(port, "terminals")]
    return max([moment(each) for each in said if each], default=0.0)


def core_seconds(but: Collection[int]) -> dict[str, float]:
    """Time on cores that each process of the container has had, without those in `but`."""
    found: dict[str, float] = {}
    for name in os.listdir("/proc"):
        try:
            with open("/proc/%d/stat" % int(name)) as file:
                fields = file.read().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if int(name) not in but:
            found[name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def works(before: dict[str, float], after: dict[str, float], seconds: float) -> bool:
    """Whether processes that were there all the time used a tenth of a core meanwhile."""
    return bool(sum(after[name] - before[name] for name in after if name in before) >= BUSY_CORES * seconds)


def write(path: str, text: str) -> None:
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError:
        pass  # a file system that cannot be written does not keep the server from going on, nor from its end


def report(text: str) -> None:
    sys.stderr.write("tessera: %s\n" % text)
    sys.stderr.flush()


def stop(server: subprocess.Popen[bytes]) -> None:
    """Ask the server to end, and end it in any case."""
    server.terminate()
    try:
        server.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def watch(server: subprocess.Popen[bytes], port: int, idle: int, warning: int, action: str) -> bool:
    """Wait for the server's end; True where it was stopped since nobody used it for `idle` seconds."""
    used, warned, told = time.time(), False, False
    looked, spent = time.time(), core_seconds((os.getpid(), server.pid))
    while True:
        try:
            server.wait(min(POLL_SECONDS, max(1.0, idle / 10)))
            return False
        except subprocess.TimeoutExpired:
            now, before = time.time(), spent
        spent = core_seconds((os.getpid(), server.pid))
        try:
            used = max(used, now if works(before, spent, now - looked) else min(now, last_used(port, now)))
        except (OSError, ValueError, TypeError, AttributeError) as error:
            used = now
            if not told:
                told = True
                report("the server on port %d does not say what it does (%s), and so is never idle" % (port, error))
        looked, left = now, used + idle - now
        if left <= 0:
            return True
        if left > warning and warned:
            warned = False
            write(WARNING_FILE, "")
            report("it is in use again, and goes on")
        elif left <= warning and not warned:
            warned = True
            text = "nobody has used it for %d s: in %d s it %ss; run a cell to keep it" % (now - used, left, action)
            write(WARNING_FILE, text + "\n")
            report(text)


def main(port: int, words: Sequence[str]) -> int:
    """The server's exit code; STOPPED, and a last word, where it was idle for too long."""
    idle = int(os.environ["TESSERA_SESSION_IDLE_SECONDS"])
    warning = int(os.environ.get("TESSERA_SESSION_WARNING_SECONDS", "600"))
    action = os.environ.get("TESSERA_SESSION_ON_IDLE", "pause")
    server = subprocess.Popen(words)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda got, _: server.send_signal(got))
    if not watch(server, port, idle, warning, action):
        return server.returncode if server.returncode >= 0 else 128 - server.returncode
    stop(server)
    who = "no kernel, terminal or program did anything for %d s" % idle
    report("%s: it %ss" % (who, action))
    write(LAST_WORD_FILE, "tessera-steps/1 %s\n" % json.dumps({"ask": action, "who": who}))
    return STOPPED


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
