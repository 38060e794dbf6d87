"""What SPARKGUARD_HISTORY keeps of programs, and programs that end when it was kept."""

import json
import shutil
import subprocess

from .waiting import wait_until


def kept(guard):
    """The copies, by the numbers of their processes."""
    return {int(f.name.split("-")[0]): f for f in guard.history.glob("*.segment")}


def shown(guard, *arguments, status=0, live=None):
    """What the report says of the live directory and the history together, as JSON."""
    env = guard.environment({"LD_PRELOAD": None, "SPARKGUARD_DIR": live or guard.directory})
    command = [str(guard.build / "sparkguard-report"), "--json", *map(str, arguments or ["--all"])]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
    return [p for job in json.loads(done.stdout)["jobs"] for p in job["processes"]]


def events(guard, pid):
    return [e["what"] for e in guard.process(pid)["events"] if "history" in e["what"]]


class Held:
    """A program that holds memory until it is let go or killed; `before`: what starts it."""

    def __init__(self, guard, program, mib=64, before=(), threads=0, first_mib=None, **options):
        command = [*before, program("dir_hold"), mib, threads] + ([] if first_mib is None else [first_mib])
        self.process = guard.popen(command, stdin=subprocess.PIPE, **options)
        assert self.process.stdout.readline() == ("ready\n" if first_mib is None else "waiting\n")
        self.pid = self.process.pid

    def grow(self):
        """From first_mib by mib."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ready\n"

    def save(self):
        """Has a copy made at once, as before any exec. This one fails, and the program goes on."""
        self.process.stdin.write("s")
        self.process.stdin.flush()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.said = self.process.communicate("")


def run_until(guard, program, condition, **options):
    """Holds a program until condition(pid); what is not waited for at an end may miss it on a busy machine."""
    with Held(guard, program, **options) as held:
        held.save()
        wait_until(lambda: condition(held.pid))
    assert (held.process.returncode, *held.said) == (0, "", "")
    return held.pid


def run_until_kept(guard, program, **options):
    return run_until(guard, program, lambda pid: pid in kept(guard), **options)


def run_until_kept_at_its_end(guard, command, count=1, **options):
    """Nobody waits long for the last copy, so on a busy machine it may be missed: then once more, from the beginning."""
    for _ in range(10):
        done = guard.run(command, **options)
        is_whole = all(p["state"] != "killed" for p in shown(guard, live=lost(guard)))
        if is_whole and len(list(guard.history.glob("*.segment"))) == count:
            return done
        shutil.rmtree(guard.directory)
        shutil.rmtree(guard.history, ignore_errors=True)
    raise AssertionError("never saved in time")


def lost(guard):
    """A live directory after a reboot."""
    return guard.directory.with_name("nothing")
