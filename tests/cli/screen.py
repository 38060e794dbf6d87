"""A terminal for tests: a program on a pseudo-terminal, and what its screen shows. It knows the sequences that the tools
send and fails on any other."""

import codecs
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time

from lib import pty
from lib.target import patience
from lib.waiting import LONGEST_SECONDS

SEQUENCE = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])")
MODES = {"1049": "is_alternate", "25": "has_cursor", "7": "wraps", "2004": "brackets_pastes", "2026": "is_drawing"}


class Screen:
    """Rows of characters. `colours` are the SGR sequences seen."""

    def __init__(self, rows, columns):
        self.rows, self.columns = rows, columns
        self.is_alternate, self.has_cursor, self.wraps = False, True, True
        self.is_drawing = self.brackets_pastes = False
        self.colours = set()
        self.frames = 0
        self.rest = ""
        self.decode = codecs.getincrementaldecoder("utf-8")().decode
        self.clear()

    def clear(self):
        self.line = [[" "] * self.columns for _ in range(self.rows)]
        self.row = self.column = 0

    def resize(self, rows, columns):
        self.rows, self.columns = rows, columns
        self.clear()

    def text(self):
        return "\n".join("".join(line).rstrip() for line in self.line).rstrip() + "\n"

    def feed(self, data):
        text, self.rest = self.rest + self.decode(data), ""
        while text:
            if text[0] == "\x1b":
                match = SEQUENCE.match(text)
                if not match:
                    assert len(text) < 16, f"unknown sequence {text[:16]!r}"
                    self.rest = text  # the end of it is still to come
                    return
                self.obey(*match.groups())
                text = text[match.end() :]
            else:
                self.put(text[0])
                text = text[1:]

    def obey(self, private, number, letter):
        if private:
            assert number in MODES and letter in "hl", f"unknown mode {number}{letter}"
            setattr(self, MODES[number], letter == "h")
            if number == "1049":  # the other screen: what was on it is of no interest here
                self.clear()
        elif letter == "m":
            self.colours.add(number)
        elif (number, letter) == ("", "H"):
            self.row = self.column = 0
            self.frames += 1
        elif (number, letter) == ("2", "J"):
            self.line = [[" "] * self.columns for _ in range(self.rows)]
        elif (number, letter) == ("2", "K"):
            self.line[self.row] = [" "] * self.columns
        else:
            raise AssertionError(f"unknown sequence {number}{letter}")

    def put(self, character):
        if character == "\r":
            self.column = 0
        elif character == "\n":
            if self.row + 1 < self.rows:
                self.row += 1
            else:
                assert not self.is_alternate, "the screen scrolled"
                self.line = [*self.line[1:], [" "] * self.columns]
        else:
            assert character.isprintable(), f"{character!r} sent to the terminal"
            self.line[self.row][min(self.column, self.columns - 1)] = character
            self.column += 1


def all_shown(command, env, columns):
    """All that a program writes to a terminal of 24 rows, until it ends."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(command, env=env, stdin=child, stdout=child, stderr=child, close_fds=True)
    os.close(child)
    output = pty.read_all(parent)
    process.wait(60)
    return output.decode()


class Terminal:
    """A program on a terminal of its own, whose first process it is."""

    def __init__(self, command, env, rows=24, columns=80):
        self.screen = Screen(rows, columns)
        self.status = None
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
                os.execvpe(str(command[0]), [str(c) for c in command], env)
            finally:
                os._exit(127)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)

    def read(self, seconds=0.1):
        """Takes what has come; False at the end."""
        if select.select([self.fd], [], [], seconds)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # EIO: nobody has the terminal any more
                return False
            self.screen.feed(data)
            return bool(data)
        return True

    def until(self, condition, meanwhile=lambda: None):
        """Reads until the condition holds of the text on the screen, between two frames; returns that."""
        end = time.monotonic() + patience(LONGEST_SECONDS)
        while self.screen.is_drawing or not condition(self.screen.text()):
            assert time.monotonic() < end, f"never came true; the screen:\n{self.screen.text()}"  # limit: ends a test that hangs
            meanwhile()
            if not self.read():
                time.sleep(0.01)  # poll: what `meanwhile` does, at the end of the program
        return self.screen.text()

    def shows(self, pattern):
        return self.until(lambda text: re.search(pattern, text, re.MULTILINE))

    def press(self, keys):
        os.write(self.fd, keys.encode())

    def resize(self, rows, columns):
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def end(self):
        """Waits for the program's end; its exit status, or minus its signal."""
        end = time.monotonic() + patience(LONGEST_SECONDS)
        while self.status is None:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            assert time.monotonic() < end, f"does not end; the screen:\n{self.screen.text()}"  # limit: ends a test that hangs
        while select.select([self.fd], [], [], 0)[0] and self.read(0):
            pass
        return self.status

    def is_raw(self):
        """Whether keys come one by one and unseen; else line by line, as a shell wants them."""
        modes = termios.tcgetattr(self.fd)[3] & (termios.ICANON | termios.ECHO)
        assert modes in (0, termios.ICANON | termios.ECHO)
        return modes == 0
