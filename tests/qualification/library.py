"""Makes shared libraries of the tests' own."""

import subprocess

from lib.target import CC


def compile_library(folder, name, text_or_file):
    source = folder / f"{name}.c"
    source.write_text(text_or_file if isinstance(text_or_file, str) else text_or_file.read_text())
    library = folder / f"{name}.so"
    command = [*CC.split(), "-O1", "-w", "-fno-builtin", "-shared", "-fPIC", "-o", library, source]
    subprocess.run(command, check=True)
    return library
