"""python -m sparkguard: the tools of this installation, with the Python that runs them.

The wheel keeps library and tools in the folder _native of this package, and the console scripts of the environment start
them. Where `make install` or the Debian package put them, they are found in PATH.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
import re
import subprocess
import sys
from typing import NoReturn, Optional

from ._tools import LIBRARY, NATIVE, find

_TOOLS = {"report": "sparkguard-report", "sweep": "sparkguard-sweep", "doctor": "sparkguard-doctor"}
_OF_LAUNCHER = ("watch", "set")  # commands that it takes as they are
_USAGE = """\
usage: python -m sparkguard run [OPTION...] SCRIPT.py|-m MODULE|PROGRAM [ARGUMENT...]
       python -m sparkguard check [SCRIPT.py|PROGRAM]
       python -m sparkguard report|watch|sweep|doctor [ARGUMENT...]
       python -m sparkguard set JOB NAME=VALUE...
       python -m sparkguard library
       python -m sparkguard kernel install [--limit=SIZE]

run      runs a script with this Python, or another program, under the guard; OPTIONs are those of sparkguard(1)
check    tells whether the guard works for this Python, or for another program
report   shows running and ended programs
watch    shows them live
sweep    finds the largest configuration that is safe
doctor   checks whether this machine would survive a job that takes too much
set      changes the limit, the reserve or the claim of a running job
library  prints the library's path: LD_PRELOAD=$(python -m sparkguard library) python train.py
kernel   adds a guarded kernel of this Python to the user's Jupyter
"""


def _fail(message: str, status: int) -> NoReturn:
    print(f"sparkguard: {message}", file=sys.stderr)
    sys.exit(status)


def _find(tool: str) -> str:
    """Returns the path of a tool: the wheel's own, else the one in PATH."""
    found = find(tool)
    if found is None:
        _fail(f"{tool} is neither beside this Python package nor in PATH", 127)
    return found


def _become(path: str, name: str, arguments: list[str]) -> NoReturn:
    try:
        os.execv(path, [name, *arguments])
    except OSError as error:
        _fail(f"{path}: {error.strerror}", 126)


def _takes_word(launcher: str, option: str) -> bool:
    """Returns whether an option of the launcher takes the next word as its value. Its --help says it."""
    text = subprocess.run([launcher, "--help"], stdout=subprocess.PIPE, text=True, check=False).stdout
    name = re.escape(option)
    ending = r"[\w-]*" if option.startswith("--") else r"(, --[\w-]+)?"  # getopt takes a prefix of a long option
    return re.search(rf"^ +(-\w, )?{name}{ending}=", text, re.MULTILINE) is not None


def _split(launcher: str, words: list[str]) -> tuple[list[str], list[str]]:
    """Splits options of the launcher from the program and its arguments."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c", "-"):
        if words[at] == "--":
            return words[:at], words[at + 1 :]
        at += 2 if "=" not in words[at] and _takes_word(launcher, words[at]) else 1
    return words[:at], words[at:]


def _is_for_python(word: str) -> bool:
    """Returns whether the word is what Python runs: -m, -c, a script, or a folder with a __main__.py."""
    if word in ("-m", "-c") or word.endswith((".py", ".pyc", ".pyz")) or os.path.isfile(os.path.join(word, "__main__.py")):
        return True
    return os.path.isfile(word) and not os.access(word, os.X_OK)


def _with_python(program: list[str]) -> list[str]:
    return [sys.executable, *program] if program and _is_for_python(program[0]) else program


def _run(words: list[str]) -> NoReturn:
    launcher = _find("sparkguard")
    options, program = _split(launcher, words)
    _become(launcher, "sparkguard", [*options, *_with_python(program)])


def _check(words: list[str]) -> NoReturn:
    program = _with_python(words) if words else [sys.executable]
    _become(_find("sparkguard"), "sparkguard", ["--check", *program[:1]])


def _library_path() -> str:
    own = NATIVE / LIBRARY
    return str(own) if own.exists() else LIBRARY  # the dynamic linker finds an installed one by its name


def _library() -> int:
    print(_library_path())
    return 0


_SHOW = """
import ctypes, os
active = getattr(ctypes.CDLL(None), "sparkguard_active", None)
print(os.environ["LD_PRELOAD"] if active and active() else "")
"""


def _guard_of_kernel(limit: Optional[str]) -> str:
    """Returns the path of the library that guards this Python. The launcher finds it and judges the limit, as for any program."""
    launcher = _find("sparkguard")
    options = ["--quiet", *([f"--limit={limit}"] if limit is not None else [])]
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD" and not name.startswith("SPARKGUARD_")}
    command = [launcher, *options, sys.executable, "-I", "-S", "-c", _SHOW]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    library = done.stdout.strip()
    said = done.stderr.strip().splitlines() or [f"sparkguard: {sys.executable} would not be guarded; see sparkguard --check {sys.executable}"]
    if done.returncode != 0 or not library:
        first = said[0].replace("; the program is not started", "")
        print(f"{first}; no kernel is installed", file=sys.stderr)
        sys.exit(done.returncode or 1)
    print(*done.stderr.splitlines(), sep="\n", end="\n" if done.stderr else "", file=sys.stderr)
    return library


def _install_kernel(limit: Optional[str]) -> int:
    """Adds a kernel to the user's Jupyter whose Python is this one, guarded. The library alone, without the launcher in between:
    ipykernel ends when its parent is not the Jupyter that started it."""
    data = os.environ.get("JUPYTER_DATA_DIR") or os.path.expanduser("~/.local/share/jupyter")
    folder = os.path.join(data, "kernels", "sparkguard")
    library = _guard_of_kernel(limit)
    kernel = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python 3 (sparkguard)",
        "language": "python",
        "env": {"LD_PRELOAD": library, **({"SPARKGUARD_LIMIT": limit} if limit else {})},
    }
    try:
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "kernel.json"), "w", encoding="utf-8") as file:
            json.dump(kernel, file, indent=2)
            file.write("\n")
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}", 1)
    print(f"{folder}: choose \"Python 3 (sparkguard)\" in Jupyter")
    if importlib.util.find_spec("ipykernel") is None:
        print(f"the kernel needs ipykernel: {sys.executable} -m pip install ipykernel")
    return 0


def _refuse(words: list[str]) -> int:
    commands = ["run", "check", "library", "kernel", *_OF_LAUNCHER, *_TOOLS]
    if words[0] == "kernel":
        print("sparkguard: kernel takes install, or install --limit=SIZE", file=sys.stderr)
        return 2
    if words[0] in commands:  # of these, only "library" comes here
        print(f"sparkguard: {words[0]} takes no argument, and here is {words[1]!r}", file=sys.stderr)
        return 2
    near = difflib.get_close_matches(words[0], commands, 1)
    hint = f"did you mean {near[0]}?" if near else "python -m sparkguard --help names them all"
    print(f"sparkguard: {words[0]!r} is no command; {hint}", file=sys.stderr)
    return 2


def main(arguments: Optional[list[str]] = None) -> int:
    """Is `python -m sparkguard`. Becomes the tool, or returns 0, or 2 for bad usage."""
    words = sys.argv[1:] if arguments is None else arguments
    command = words[0] if words else ""
    if command in _TOOLS:
        _become(_find(_TOOLS[command]), _TOOLS[command], words[1:])
    if command == "run":
        _run(words[1:])
    if command == "check":
        _check(words[1:])
    if command in _OF_LAUNCHER:
        _become(_find("sparkguard"), "sparkguard", words)
    if command == "library" and len(words) == 1:
        return _library()
    if words[:2] == ["kernel", "install"]:
        options = words[2:] if words[2:3] != ["--limit"] or len(words) != 4 else [f"--limit={words[3]}"]
        if not options or (len(options) == 1 and options[0].startswith("--limit=")):
            return _install_kernel(options[0].partition("=")[2] if options else None)
    is_asked = command in ("-h", "--help", "help")
    if command and not is_asked:
        return _refuse(words)
    print(_USAGE, end="", file=sys.stdout if is_asked else sys.stderr)
    return 0 if is_asked else 2


def console() -> NoReturn:
    """Is each console script of the wheel: becomes the tool whose name the script has."""
    name = os.path.basename(sys.argv[0])
    own = NATIVE / name
    if not own.exists():  # an editable installation: PATH would lead back to this script
        _fail(f"{own} is missing; install the wheel that `make wheel` builds", 127)
    _become(str(own), name, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
