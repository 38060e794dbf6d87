"""docs/python.md: the example of a refusal can be pasted into a Python prompt, and says there what the page shows, apart from figures."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = re.compile(r"`(sparkguard [^`]*) python3`:\n\n```python\n(import sparkguard\n.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def normal(text):
    text = re.sub(r"[\d.]+ [KMG]iB\b", "SIZE", text)
    text = re.sub(r"--limit [\d.]+[KMG]", "--limit SIZE", text)
    text = re.sub(r" at <[^>]+>:\d+", " at PLACE", text)  # the name of a prompt differs among versions of Python
    return re.sub(r"sparkguard-report \d+", "sparkguard-report PID", text)


def test_the_example_of_a_refusal_can_be_pasted(tools, tmp_path):
    command, block, shown = EXAMPLE.search((ROOT / "docs/python.md").read_text()).groups()
    env = {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "tools/python"), "SPARKGUARD_HISTORY": "off"}
    env |= {"SPARKGUARD_DIR": str(tmp_path / "live"), "ASAN_OPTIONS": "verify_asan_link_order=0", "TERM": "dumb"}
    tool, *options = command.split()
    words = [tools / tool, *options, "/usr/bin/python3", "-S", "-i", "-q"]
    done = subprocess.run(words, input=block, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    said = re.sub(r"^(?:(?:>>>|\.\.\.) )+", "", done.stdout, flags=re.MULTILINE)
    assert normal(said).strip() == normal(shown).strip()
