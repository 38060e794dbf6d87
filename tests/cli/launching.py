"""The launcher with an empty library to preload, and a directory of the test's own."""

import os
import subprocess


def replaces_malloc(tools):
    """Whether the tools are built with AddressSanitizer, whose allocator and the guard's cannot both replace malloc."""
    return b"__asan_init" in (tools / "sparkguard-doctor").read_bytes()


class Launcher:
    def __init__(self, tools, scratch):
        self.scratch = scratch
        self.program = tools / "sparkguard"
        self.library = scratch / "libempty.so"
        source = scratch / "empty.c"
        source.write_text("int sparkguard_test_is_preloaded = 1;\n")
        subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(self.library)], check=True)
        self.directory = scratch / "live"
        self.directory.mkdir(exist_ok=True)

    def environment(self, **extra):
        env = {k: v for k, v in os.environ.items() if not k.startswith("SPARKGUARD_") and k != "LD_PRELOAD"}
        env["ASAN_OPTIONS"] = "verify_asan_link_order=0"  # sanitizer builds under a preload
        env["PATH"] = f"{self.program.parent}:{env['PATH']}"  # messages name the tools by name alone
        return {**env, "SPARKGUARD_DIR": str(self.directory), **extra}

    def command(self, *arguments):
        return [str(self.program), f"--library={self.library}", *map(str, arguments)]

    def run(self, *arguments, **extra):
        return subprocess.run(
            self.command(*arguments), env=self.environment(**extra), capture_output=True, text=True, timeout=60
        )

    def start(self, *arguments, **options):
        options = {"stdout": subprocess.PIPE, "text": True, "env": self.environment(), **options}
        return subprocess.Popen(self.command(*arguments), **options)

    def variables(self, *options, **extra):
        done = self.run("-q", *options, "env", **extra)
        assert done.returncode == 0, done.stderr
        return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
